// Package python_test proves that docs/protocol.md suffices: a client in another language, written from it alone, against real brokers and services.
package python_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/docs/examples/readme"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

const endpoint = "com.example.python"

type text struct {
	Text string `msgpack:"text"`
}

type file struct {
	File *os.File `msgpack:"file"`
}

type number struct {
	N int `msgpack:"n"`
}

// A service serves the endpoint.
type service struct {
	*brokertest.Service
	socket string
	opened chan *session.Session
	ended  chan error // why the context of wait ended

	mu    sync.Mutex
	taken []int // of the one-way messages, in the order they were handled
}

// serve starts a broker and a service.
func serve(t *testing.T) *service {
	t.Helper()
	leavesNothing(t)
	s := &service{opened: make(chan *session.Session, 8), ended: make(chan error, 1)}
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, v any) (any, error) { return v, nil })
	services.Handle(mux, "cat", func(_ context.Context, r file) (text, error) {
		defer r.File.Close()
		content, err := io.ReadAll(r.File)
		return text{string(content)}, err
	})
	services.Handle(mux, "open", func(_ context.Context, r text) (file, error) {
		in, out, err := os.Pipe()
		if err != nil {
			return file{}, err
		}
		defer out.Close()
		_, err = out.WriteString(r.Text)
		return file{in}, err
	})
	services.Handle(mux, "fail", func(context.Context, any) (any, error) {
		return nil, &wire.Error{Code: wire.Conflict, Text: "it is taken", Holder: &wire.Holder{PID: 42, UID: 7, Lease: "l"}}
	})
	services.Handle(mux, "large", func(_ context.Context, r number) (text, error) { return text{strings.Repeat("x", r.N)}, nil })
	services.Handle(mux, "wait", func(ctx context.Context, _ any) (any, error) {
		<-ctx.Done()
		s.ended <- ctx.Err()
		return nil, ctx.Err()
	})
	services.HandleOneWay(mux, "take", s.take)
	services.Handle(mux, "back", back)
	services.Handle(mux, "time", func(_ context.Context, n int64) (time.Time, error) { return time.Unix(0, n), nil })
	another := services.NewMux()
	services.Handle(another, "echo", func(_ context.Context, r text) (any, error) { return map[string]string{"t": r.Text}, nil })
	b := brokertest.Start(t)
	s.Service = b.Serve(services.Server{
		Service:   endpoint,
		Endpoints: map[string]*services.Mux{endpoint: mux, "com.example.another": another},
		Opened:    func(o *session.Session) { s.opened <- o },
	})
	s.socket = b.Socket
	return s
}

func (s *service) take(_ context.Context, n number) error {
	if n.N < 0 {
		time.Sleep(-time.Duration(n.N) * time.Millisecond) // this one takes its time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, n.N)
	return nil
}

// back sends the caller one-way messages, more than it accepts at a time, and asks it for what it does not have.
func back(ctx context.Context, r number) (text, error) {
	caller := services.FromContext(ctx)
	for i := range r.N {
		if err := caller.Send(ctx, "take", map[string]any{"n": i, "padding": strings.Repeat("x", 30_000)}); err != nil {
			return text{}, err
		}
	}
	small := caller.Call(ctx, "nothing", nil, nil)
	large := caller.Call(ctx, "nothing", strings.Repeat("x", 1_000_000), nil)
	stream, err := caller.OpenStream(ctx, "nothing")
	if err != nil {
		return text{}, err
	}
	defer stream.Close()
	_, err = stream.Read(make([]byte, 1))
	return text{fmt.Sprintln(wire.CodeOf(small), wire.CodeOf(large), wire.CodeOf(err))}, nil
}

func TestTheProtocolsVectorsHold(t *testing.T) {
	for what, name := range map[string]string{"frames": "vectors", "session": "session"} {
		path := "../../../wire/testdata/" + name
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		vectors := len(regexp.MustCompile(`(?m)^[a-z0-9-]+: `).FindAll(content, -1)) // each has a line with its name
		want := fmt.Sprintf("%d of %d", vectors, vectors)
		if got := python(t, "", "vectors.py", what, path).end(0); got != want || vectors < 20 {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestTheDemosEchoComesBack(t *testing.T) {
	s := serve(t)
	if got := python(t, s.socket, "demo.py", "echo", endpoint, "grüezi").end(0); got != "grüezi" {
		t.Errorf("%q", got)
	}
	python(t, s.socket, "demo.py", "echo").end(2)
	other := python(t, s.socket, "demo.py", "echo", "com.example.another", "hi")
	other.end(1)
	if got, want := other.stderr.String(), "demo.py: malformed: the reply is no map with a text: {'t': 'hi'}\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p := python(t, s.socket, "demo.py", "echo", "com.example.nobody", "hi")
	p.end(1)
	if got := p.stderr.String(); !strings.HasPrefix(got, "demo.py: unknown_endpoint: ") || strings.Contains(got, "Traceback") {
		t.Errorf("%q", got)
	}
}

func TestValuesOfEveryTypeComeBackAsTheyWere(t *testing.T) {
	s := serve(t)
	script(t, s.socket, `
deep = "leaf"
for _ in range(31): deep = [deep]
for v in (None, True, -1, 2**63 - 1, -2**63, 1.5, "é" * 100, b"\0" * 300, list(range(100)), {"a": {"b": [1, None]}}, deep, "x" * 60_000):
    got = s.call("echo", v, timeout=20)
    assert got == v and type(got) is type(v), (v, got)
s.close()`).end(0)
}

func TestATimeOfGosIsReadAsNanoseconds(t *testing.T) {
	s := serve(t)
	script(t, s.socket, `
for n in (0, 1, 10**9, 2**32 * 10**9, 2**32 * 10**9 - 1, -1, -10**9, -2**63, 2**63 - 1):
    got = s.call("time", n, timeout=20)
    assert got == n, (got, n)
import msgpack
for bad in ("d6fe00000000", "d5ff0000", "c705ff0000000000", "d7ffffffffff00000000", "c70cff3b9aca000000000000000000", "d6ff0000", "c70cff00"):
    try: print(msgpack.unpack(bytes.fromhex(bad)), "is read from", bad)
    except ValueError: pass
s.close()`).end(0)
}

// opens waits until an endpoint can be opened.
func opens(t *testing.T, b *brokertest.Broker, endpoint string) {
	t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s, err := client.Dial(t.Context(), endpoint, client.Options{Socket: b.Socket})
		if err == nil {
			s.Close()
			s.Wait()
			return
		}
		if !errors.Is(err, wire.UnknownEndpoint) || time.Now().After(late) {
			t.Fatal(err)
		}
	}
}

func TestWhatTheReadmeShowsWorksWithItsService(t *testing.T) {
	leavesNothing(t)
	program := filepath.Join(t.TempDir(), "service")
	if out, err := exec.Command("go", "build", "-o", program, "./service").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const last = "    lost = session.wait()"
	_, example, _ := strings.Cut(string(text), "```python\n")
	example, _, _ = strings.Cut(example, "```")
	if !strings.Contains(example, last) {
		t.Fatalf("the example does not end with %q:\n%s", last, example)
	}
	file := filepath.Join(t.TempDir(), "hostname")
	if err := os.WriteFile(file, []byte("a host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	example = strings.ReplaceAll(example, "/etc/hostname", file) // not every system has it

	b := brokertest.Start(t)
	service := start(t, program, append(os.Environ(), "FAIRLEAD_SOCKET="+b.Socket))
	opens(t, b, "com.example.echo")
	for want, args := range map[string][]string{"hi": {"echo", "com.example.echo", "hi"}, "a host": {"descriptor", "com.example.echo", file}} {
		if got := python(t, b.Socket, append([]string{"demo.py"}, args...)...).end(0); got != want {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	p := python(t, b.Socket, "-u", "-c", strings.Replace(example, last, "    print('all are handled')\n"+last, 1)+"print(lost.code)")
	for _, want := range []string{"hi", "x", "all are handled"} {
		if got := p.line(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	service.signal(syscall.SIGTERM)
	service.end(0)
	if got := p.end(0); got != "interrupted" {
		t.Errorf("%q", got)
	}
}

func TestTheDemosEchoWorksWithTheServiceOfTheMainReadme(t *testing.T) {
	leavesNothing(t)
	b := brokertest.Start(t)
	t.Setenv("FAIRLEAD_SOCKET", b.Socket)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- readme.Serve(ctx) }()
	defer func() { cancel(); <-served }()
	opens(t, b, "com.example.echo")
	if got := python(t, b.Socket, "demo.py", "echo", "com.example.echo", "hi").end(0); got != "hi" {
		t.Errorf("%q", got)
	}
}

func TestDescriptorsTravelBothWays(t *testing.T) {
	s := serve(t)
	path := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(path, []byte("what is in it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := python(t, s.socket, "demo.py", "descriptor", endpoint, path).end(0); got != "what is in it" {
		t.Errorf("read by the service: %q", got)
	}
	p := script(t, s.socket, `
import resource
before = os.listdir("/proc/self/fd")
for i in range(100): # more than are in flight at a time
    reply = s.call("open", {"text": "from the service"}, timeout=20, takes=["file"])
    with os.fdopen(reply["file"]) as f: assert f.read() == "from the service"
    assert not os.get_inheritable(s.pidfd)
s.call("open", {"text": "nobody takes it"}, timeout=20)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))
full = []
try:
    while True: full.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
try: print(s.call("open", {"text": "there is no room"}, timeout=20, takes=["file"]))
except fairlead.FairleadError as e: print(e.code)
fairlead.close_all(full)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with open("/dev/null") as f:
    for request in ({"file": 0}, {"file": 1}, {"file": fairlead.Descriptor(f), "more": "ignored"}):
        try: assert s.call("cat", request, timeout=20) == {"text": ""}
        except fairlead.FairleadError as e: assert e.code == "malformed" and "more" not in request, e
assert os.listdir("/proc/self/fd") == before, (before, os.listdir("/proc/self/fd"))
s.close()`)
	if got := p.end(0); got != "over_quota" {
		t.Error(got)
	}
}

func TestErrorCodesReachPython(t *testing.T) {
	s := serve(t)
	p := script(t, s.socket, `
def code(method, value=None):
    try: s.call(method, value, timeout=20)
    except fairlead.FairleadError as e: return e
e = code("fail")
print(e, e.holder)
print(code("what").code, code("cat", "no map").code, code("echo", "x" * 70_000).code)
s.close()
s.close()
print(code("echo").code)`)
	want := "conflict: it is taken {'p': 42, 'u': 7, 'l': 'l'}\nunknown_method malformed unsupported\ninvalid"
	if got := p.end(0); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

func TestADeadlineThatPassesEndsTheHandlersContext(t *testing.T) {
	s := serve(t)
	p := script(t, s.socket, `
try: s.call("wait", timeout=0.1)
except fairlead.FairleadError as e: print(e.code)
print(s.call("echo", "goes on", timeout=20))
s.close()`)
	if got := p.line(); got != "deadline_exceeded" {
		t.Error(got)
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Error("the handler's context does not end")
	}
	if got := p.end(0); got != "goes on" {
		t.Error(got)
	}
}

func TestACancelEndsTheHandlersContextBeforeItsDeadline(t *testing.T) {
	s := serve(t)
	p := script(t, s.socket, `
import session
session.milliseconds_until = lambda _: 0 # the service is told of no deadline
try: s.call("wait", timeout=0.1)
except fairlead.FairleadError as e: print(e.code)
s.flush(timeout=20) # the cancel has left
s.close()`)
	select {
	case err := <-s.ended:
		if err != context.Canceled {
			t.Errorf("%v, want %v", err, context.Canceled)
		}
	case <-time.After(patience):
		t.Error("the handler's context does not end")
	}
	if got := p.end(0); got != "deadline_exceeded" {
		t.Error(got)
	}
}

func TestOneWayMessagesKeepTheirOrderAndAFlushWaitsForTheirHandlers(t *testing.T) {
	s := serve(t)
	const messages = 2000 // more than the service accepts at a time, as are their bytes
	p := script(t, s.socket, `
for n in range(`+strconv.Itoa(messages)+`): s.send("take", {"n": n, "padding": "x" * 5000}, timeout=20)
s.send("take", {"n": -100})
s.flush(timeout=20)
print("flushed", flush=True)
s.close()`)
	if got := p.line(); got != "flushed" {
		t.Error(got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.taken) != messages+1 {
		t.Fatalf("%d messages were handled before the flush was, want %d", len(s.taken), messages+1)
	}
	for i, n := range s.taken[:messages] {
		if n != i {
			t.Fatalf("message %d was taken as number %d", n, i)
		}
	}
	p.end(0)
}

func TestTheServicesMessagesComeInOrderAndItsRequestsAndStreamsAreDeclined(t *testing.T) {
	s := serve(t)
	p := script(t, s.socket, `
s.close()
taken = []
s = fairlead.connect("`+endpoint+`", on_message=lambda method, value, files: taken.append((method, value["n"])))
print(s.call("back", {"n": 600}, timeout=25)["text"], end="")
assert taken == [("take", n) for n in range(600)], taken
s.close()`)
	if got := p.end(0); got != "unknown_method unknown_method interrupted" {
		t.Error(got)
	}
}

func TestLargeRepliesAreReadAndDroppedWhenNobodyWaits(t *testing.T) {
	s := serve(t)
	p := script(t, s.socket, `
for n in (100_000, 1, 3_000_000, 60_000):
    assert s.call("large", {"n": n}, timeout=20) == {"text": "x" * n}
for _ in range(20):
    try: s.call("large", {"n": 1_000_000}, timeout=0.001)
    except fairlead.FairleadError as e: assert e.code == "deadline_exceeded", e
print(len(s.call("large", {"n": 500_000}, timeout=20)["text"]))
s.close()`)
	if got := p.end(0); got != "500000" {
		t.Error(got)
	}
}

func TestASessionThatPythonClosesEndsAsOneThatThePeerClosed(t *testing.T) {
	s := serve(t)
	script(t, s.socket, `s.close("no more to ask")`).end(0)
	ended := <-s.opened
	<-ended.Done()
	if got, want := ended.End(), (wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "no more to ask"}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestASessionWhoseServiceIsKilledOrStoppedIsInterrupted(t *testing.T) {
	for name, end := range map[string]func(*service){
		"killed":  func(s *service) { s.Kill() },
		"stopped": func(s *service) { s.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			p := script(t, s.socket, `
print("open", flush=True)
print(s.wait(30).code, s.terminating)
try: s.call("echo", "hi")
except fairlead.FairleadError as e: print(e.code)`)
			p.line()
			<-s.opened // before, there is no session yet to end
			end(s)
			if got, want := p.end(0), map[string]string{"killed": "interrupted False\ninterrupted", "stopped": "interrupted True\ninterrupted"}[name]; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

func TestPythonClosesTheSessionOfAnotherAtTheBroker(t *testing.T) {
	s := serve(t)
	other := script(t, s.socket, `
print(s.id, flush=True)
end = s.wait(30)
print(end.code, end.origin, end.text)`)
	id := other.line()
	p := python(t, s.socket, "-c", `
import fairlead
with fairlead.connect("fairlead.broker", timeout=20) as b:
    print(b.call("status")["s"])
    print(b.call("inspect", {"s": "`+id[:8]+`"})["s"]["st"])
    print(b.call("close", {"s": "`+id[:8]+`", "t": "by Python"}, timeout=20)["x"])
    print(b.call("inspect", {"s": "`+id[:8]+`"})["s"]["st"])`)
	want := s.socket + "\nopen\n{'c': 'interrupted', 'o': 'broker', 't': 'by Python'}\nclosed"
	if got := p.end(0); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
	if got := other.end(0); got != "interrupted broker by Python" {
		t.Error(got)
	}
}
