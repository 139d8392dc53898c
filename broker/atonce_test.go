package broker_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// handedOver registers this process by hand, with features, and returns what is handed over to it.
func handedOver(t *testing.T, b *brokertest.Broker, features ...string) <-chan wire.HandOver {
	t.Helper()
	conn, err := connect(b.Socket)
	must(t, err)
	must(t, say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}, Features: features}))
	must(t, answer(conn))
	conn.SetDeadline(time.Time{})
	came := make(chan wire.HandOver, 1)
	mux := services.NewMux()
	services.HandleOneWay(mux, wire.MethodHandOver, func(_ context.Context, h wire.HandOver) error {
		came <- h
		return nil
	})
	control := session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: mux})
	t.Cleanup(func() { lose(control) })
	return came
}

func TestRoutedIsSaidOnceByTheBrokerOrTheInstance(t *testing.T) {
	open := func(features ...string) []byte {
		f, err := wire.NewFrame(wire.KindOpen, 0, wire.Open{Endpoint: echoEndpoint, Title: "by hand", Features: features, Limits: wire.DefaultLimits})
		must(t, err)
		return append(f.Append(nil), "what follows"...)
	}
	for _, test := range []struct {
		name             string
		client, instance []string
		cut              int // bytes that come first
		relays           bool
	}{
		{"both relay", []string{wire.FeatureRelay}, []string{wire.FeatureRelay}, 1 << 10, true},
		{"both relay, and the open comes in two parts", []string{wire.FeatureRelay}, []string{wire.FeatureRelay}, 20, true},
		{"the client does not", []string{wire.FeatureLane}, []string{wire.FeatureRelay}, 1 << 10, false},
		{"the instance does not", []string{wire.FeatureRelay}, nil, 1 << 10, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			b := brokertest.Start(t)
			came := handedOver(t, b, test.instance...)
			conn, err := connect(b.Socket)
			must(t, err)
			defer conn.Close()
			first := open(test.client...)
			at := min(test.cut, len(first))
			_, err = conn.Write(first[:at])
			must(t, err)
			if at < len(first) {
				accepts(t, b) // and so it has accepted this one, and goes on without it
				_, err = conn.Write(first[at:])
				must(t, err)
			}
			h := receive(t, came)
			theirs, err := socket.FromFile(h.Socket)
			must(t, err)
			h.Socket.Close()
			defer theirs.Close()
			rest := make([]byte, 100)
			if n, err := theirs.Read(rest); err != nil || string(rest[:n]) != "what follows" {
				t.Errorf("left in the socket: %q, %v", rest[:n], err)
			}
			accepted, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{Limits: wire.DefaultLimits})
			must(t, err)
			must(t, socket.WriteFrame(theirs, accepted))
			want := []wire.Kind{wire.KindRouted, wire.KindAccepted}
			if test.relays {
				want = want[1:]
			}
			for _, kind := range want {
				f, files, err := socket.ReadFrame(conn)
				socket.CloseFiles(files)
				if err != nil || f.Kind != kind || (f.Kind == wire.KindRouted) != (len(files) == 1) {
					t.Fatalf("the client reads %v with %d descriptors, %v, want %v", f.Kind, len(files), err, kind)
				}
			}
			if (h.Routed != nil) != test.relays || test.relays && (h.Routed.Session != h.Session || h.Routed.Service != echoEndpoint || h.Routed.Process.PID != os.Getpid()) {
				t.Errorf("the instance is to say %+v", h.Routed)
			}
			open := sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint})
			if len(open) != 1 || open[0].ID != h.Session || open[0].State != broker.SessionOpening || open[0].Client.PID != os.Getpid() || open[0].Title != "by hand" {
				t.Errorf("the broker lists %+v", open)
			}
		})
	}
}

// The instance sees which way an open has taken: on the long one Go's poller watches the connection, for which the socket, and so also the instance's copy, is set not to block.
func TestAnOpenForWhichNobodyHasToBeWaitedForIsHandedOverByWhoAcceptsIt(t *testing.T) {
	leavesNothing(t)
	at := brokertest.Socket(t)
	p := play(t, "broker", "", at)
	p.line(t)
	came := handedOver(t, brokertest.At(t, at), wire.FeatureRelay)
	atOnce := func(features ...string) bool {
		halt(t, p.cmd.Process.Pid) // it finds the frame there when it accepts
		conn, err := connect(at)
		must(t, err)
		defer conn.Close()
		must(t, say(conn, wire.KindOpen, wire.Open{Endpoint: echoEndpoint, Features: features, Limits: wire.DefaultLimits}))
		must(t, p.cmd.Process.Signal(syscall.SIGCONT))
		h := receive(t, came)
		defer h.Socket.Close()
		raw, err := h.Socket.SyscallConn() // Fd would have it block
		must(t, err)
		var flags int
		must(t, raw.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) }), err)
		return flags&unix.O_NONBLOCK == 0
	}
	for tries := 1; !atOnce(wire.FeatureRelay); tries++ { // not where it was stopped while it wrote something else to the instance
		if tries == 50 {
			t.Fatalf("of %d opens none was handed over at once", tries)
		}
	}
	if atOnce() {
		t.Error("a client that does not relay was handed over before it was told where")
	}
}

func TestAStoppedInstanceAndSilentClientsHoldUpNoOtherOpen(t *testing.T) {
	leavesNothing(t)
	b := brokertest.Start(t)
	b.Serve(echoServer())
	const stopped = "com.example.stopped"
	control, err := connect(b.Socket)
	must(t, err)
	defer control.Close() // nobody reads it
	must(t, say(control, wire.KindRegister, wire.Register{Service: stopped, Endpoints: []string{stopped}, Features: []string{wire.FeatureRelay}}), answer(control))
	for range 100 { // more than the credit that it has given for their descriptors
		silent, err := connect(b.Socket)
		must(t, err)
		defer silent.Close()
		waits, err := connect(b.Socket)
		must(t, err)
		defer waits.Close()
		must(t, say(waits, wire.KindOpen, wire.Open{Endpoint: stopped, Features: []string{wire.FeatureRelay}, Limits: wire.DefaultLimits}))
	}
	until(t, "it has given credit for no more", func() bool {
		return int64(len(sessions(t, b, broker.SessionsRequest{Endpoint: stopped}))) >= wire.DefaultLimits.Files
	})
	s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket, NoWait: true})
	must(t, err)
	must(t, s.Call(within(t, patience), "echo", echoRequest{}, nil), s.Close())
}

// accepts returns when a broker has accepted all that have connected at everybody's socket.
func accepts(t *testing.T, b *brokertest.Broker) {
	t.Helper()
	last, err := connect(b.Socket)
	must(t, err)
	defer last.Close()
	must(t, say(last, wire.KindAccepted, nil))
	if err := answer(last); wire.CodeOf(err) != wire.Malformed {
		t.Fatalf("a first frame of no sense: %v", err)
	}
}

// receive returns what comes, in time.
func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing comes")
	}
	return v
}

func TestAShortSessionIsToldWithItsBeginningAndItsEnd(t *testing.T) {
	leavesNothing(t)
	b := brokertest.Start(t)
	b.Serve(echoServer())
	watcher := b.Dial(broker.Endpoint, client.Options{})
	defer watcher.Close()
	events, err := client.OpenStreaming[broker.Event, struct{}](within(t, patience), watcher, broker.MethodMonitor, broker.MonitorRequest{From: 1, Kinds: []string{"session"}})
	must(t, err)
	defer events.Close()
	const n = 20
	for range n {
		s := b.Dial(echoEndpoint, client.Options{Title: "short"})
		if err := s.Call(within(t, patience), "echo", echoRequest{}, nil); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	seen := map[string][]string{}
	for whole := 0; whole < n; {
		e, err := events.Receive()
		must(t, err)
		if e.Title != "short" {
			continue
		}
		seen[e.Session] = append(seen[e.Session], e.Kind)
		if e.Kind == broker.EventSessionClosed {
			whole++
		}
	}
	for id, kinds := range seen {
		if !slices.Equal(kinds, []string{broker.EventSessionOpened, broker.EventSessionClosed}) {
			t.Errorf("session %s: %v", id, kinds)
		}
	}
	if len(seen) != n {
		t.Errorf("%d sessions are told of, want %d", len(seen), n)
	}
}

// guard: PassRights in newDoor. What waits in the queue of a connection that is refused is let go where connections are accepted, and closing it could take any time.
func TestNobodySendsTheBrokerADescriptor(t *testing.T) {
	b := brokertest.Start(t)
	conn, err := connect(b.Socket)
	must(t, err)
	defer conn.Close()
	file, err := os.Open(os.DevNull)
	must(t, err)
	defer file.Close()
	raw, err := conn.SyscallConn()
	must(t, err)
	raw.Control(func(fd uintptr) { _, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS) })
	if errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("the kernel cannot refuse descriptors for a socket (Linux 6.16)")
	}
	if _, _, err := conn.WriteMsgUnix([]byte{wire.Version}, syscall.UnixRights(int(file.Fd())), nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("one is sent: %v, want %v", err, unix.EPERM)
	}
}
