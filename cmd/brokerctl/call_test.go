package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
	"github.com/fairlead-dev/fairlead/wire/session"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares what was printed with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: this is printed\n%s\nand not\n%s", path, got, want)
	}
}

// pipe runs brokerctl as a process of its own, with words of which each is one, and with a text on standard input.
func (w *world) pipe(input string, words ...string) outcome {
	w.Helper()
	cmd := w.program()
	cmd.Args = append(cmd.Args, words...) // the socket stands first: behind -- it would be an operand
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	_ = cmd.Run() // its exit code says it
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func TestMethodsPrintsWhatAServiceSaysOfItself(t *testing.T) {
	w := typing(t)
	golden(t, "methods.txt", w.pipe("", "methods", typed).out)
	golden(t, "methods.json", w.pipe("", "methods", typed, "--json").out)
	for _, method := range []string{"status", "sessions", "logs"} {
		w.says(w.done("methods fairlead.broker"), `^`+method+` +(call|streaming call) +`)
	}
}

func TestCallChecksConvertsAndPrints(t *testing.T) {
	w := typing(t)
	file := filepath.Join(t.TempDir(), "request.json")
	w.must(os.WriteFile(file, []byte(`{"title": "from a file"}`), 0o644))
	const whole = `{"title":"a\u001b","at":"2026-02-03T04:05:06Z","urgency":-1,"tags":["x"],"body":"AAE=","counts":{"a":1},"in_reply_to":{"title":"b"}}`
	for _, test := range []struct {
		input string
		words []string
		code  int
		out   string
		errs  string
	}{
		{"", []string{"echo", whole}, 0, whole + "\n", ""},
		{"", []string{"echo"}, 0, `{"title":""}` + "\n", ""},
		{"", []string{"echo", "@" + file}, 0, `{"title":"from a file"}` + "\n", ""},
		{`{"title": "piped"}`, []string{"echo", "-"}, 0, `{"title":"piped"}` + "\n", ""},
		{"", []string{"echo", "-"}, 2, "", "no JSON where an object is wanted"},
		{"", []string{"echo", "@" + file + "x"}, 2, "", "no such file"},
		{"", []string{"echo", `{"titel":""}`}, 2, "", "request to echo: titel: there is no such field: is it title?"},
		{"", []string{"echo", `{"in_reply_to":{"tags":["a",1]}}`}, 2, "", "in_reply_to.tags[1]: want a string, got 1"},
		{"", []string{"echo", `{"urgency":200}`}, 2, "", "urgency: want int8: a whole number from -128 to 127, got 200"},
		{"", []string{"echo", `{"log":1}`}, 2, "", "log: want nothing: a descriptor cannot be sent from JSON"},
		{"", []string{"echo", `{`}, 2, "", "it ends early"},
		{"", []string{"ehco"}, 1, "", typed + " has no method ehco: is it echo?"},
		{"", []string{"\x1b[2J"}, 1, "", `no method \x1b[2J: there is count, echo,`},
		{"", []string{"told"}, 0, "0\n", ""},
		{"", []string{"tell", "5"}, 0, "", ""},
		{"", []string{"tell"}, 0, "", ""},
		{"", []string{"told", "{}"}, 0, "5\n", ""},
		{"", []string{"tell", `"5"`}, 2, "", "want int64"},
		{"", []string{"tell", "x"}, 2, "", "at byte 0 (malformed)\n"},
		{"", []string{"fail", "not_found"}, 2, "", `at byte 0 (malformed); a string is written '"not_found"'`},
		{"", []string{"fail", "5"}, 2, "", `want a string, got 5 (malformed); a string is written '"5"'`},
		{"", []string{"fail", `"not_found`}, 2, "", `a string is written '"…"'`},
		{"not_found", []string{"fail", "-"}, 2, "", "at byte 0 (malformed)\n"},
		{"", []string{"fail", `"not_found"`}, 3, "", `as you wish\x1b[2J (not_found)`},
		{"", []string{"fail", `"conflict"`, "--accept", "conflict"}, 0, `{"code":"conflict","text":"call fail of com.example.typed: as you wish\u001b[2J","holder":{"pid":7,"uid":0},"retry":1000000000}` + "\n", ""},
		{"", []string{"fail", `"conflict"`, "--accept", "not_found,exhausted"}, 2, "", "conflict"},
		{"", []string{"fail", `"conflict"`, "--accept", "conflit"}, 2, "", "--accept: no error has the code conflit: is it conflict?"},
		{"", []string{"ehco", "--accept", "unknown_method"}, 0, `{"code":"unknown_method","text":"com.example.typed has no method ehco: is it echo?"}` + "\n", ""},
		{"", []string{"echo", `{"titel":""}`, "--accept", "malformed"}, 2, "", "is it title?"},
		{"", []string{"hang", "--timeout", "200ms"}, 6, "", "deadline_exceeded"},
		{"", []string{"hang", "--timeout", "200ms", "--accept", "deadline_exceeded"}, 0, `{"code":"deadline_exceeded",`, ""},
		{"", []string{"shout", "--timeout", "200ms"}, 0, "", ""},
		{"", []string{"count", "2"}, 0, `{"title":"0"}` + "\n" + `{"title":"1"}` + "\n", ""},
		{"", []string{"count"}, 0, "", ""},
		{"", []string{"count", "-"}, 2, "", "no JSON"},
		{"", []string{"count", "--", "-1"}, 1, "", "cannot count to -1"},
		{"", []string{"count", "--accept", "exhausted", "--", "-1"}, 0, `{"code":"exhausted",`, ""},
		{"{\"title\":\"a\"}\n{\"title\":\"b\"}", []string{"upper"}, 0, `{"title":"A"}` + "\n" + `{"title":"B"}` + "\n", ""},
		{"", []string{"upper"}, 0, "", ""},
		{"{\"title\":\"a\"}\n{\"titel\":\"b\"}", []string{"upper"}, 2, "", "value 2 of standard input: titel: there is no such field"},
		{`{"title":"` + strings.Repeat("a", wire.MaxBody) + `"}`, []string{"upper"}, 1, "", "value 1 of standard input"},
		{"null", []string{"upper", "-"}, 0, "", ""},
		{"loud\n\x00", []string{"shout"}, 0, "LOUD\n\x00", ""},
		{"", []string{"shout", "{}"}, 2, "", "shout is a stream of bytes"},
		{"", []string{"watch", `"one"`, "--timeout", "300ms"}, 6, "\"one\"\n", "stream watch: context deadline exceeded (deadline_exceeded)"},
	} {
		got := w.pipe(test.input, append([]string{"call", typed}, test.words...)...)
		if test.errs == "" && got.errs != "" || got.code != test.code || !strings.Contains(got.errs, test.errs) || strings.ContainsRune(got.errs+got.out, '\x1b') {
			t.Errorf("%q: exit code %d, want %d, and it says %q", test.words, got.code, test.code, got.errs)
		}
		if whole := strings.HasSuffix(test.out, "\n") || test.out == ""; test.code == 0 && (whole && got.out != test.out || !strings.HasPrefix(got.out, test.out)) {
			t.Errorf("%q: %s, want %s", test.words, got.out, test.out)
		}
	}
	for _, line := range []string{"call", "call " + typed, "call " + typed + " echo {} {}"} {
		if o := w.ctl(line); o.code != 2 || !strings.Contains(o.errs, "call takes") {
			t.Errorf("%s: %+v", line, o)
		}
	}
	if o := w.ctl("call com.example.tpyed echo"); o.code != 3 || !strings.Contains(o.errs, "unknown_endpoint") {
		t.Errorf("%+v", o)
	}
	if o := w.ctl("call com.example.tpyed echo --accept unknown_endpoint"); o.code != 0 || !strings.Contains(o.out, `{"code":"unknown_endpoint"`) {
		t.Errorf("%+v", o)
	}
}

func TestTheBrokersOwnMethodsAreCalledByTheirJSONNames(t *testing.T) {
	w := typing(t)
	var status struct {
		Socket    string `json:"socket"`
		StartedAt string `json:"started_at"`
	}
	w.must(json.Unmarshal([]byte(w.done("call fairlead.broker status")), &status))
	if status.Socket != w.broker.Socket || !strings.HasSuffix(status.StartedAt, "Z") {
		t.Errorf("%+v", status)
	}
	w.says(w.done(`call fairlead.broker sessions {"state":"all","endpoint":"fairlead.broker"}`), `^\{"sessions":\[\{"id":"[0-9a-f]{32}","endpoint":"fairlead.broker","state":"closed"`)
	w.says(w.done(`call fairlead.broker start {"name":"`+typed+`"}`), `"state":"running"`)
}

func TestAServiceThatDoesNotDescribeItselfIsCalledWithWhatTheJSONIs(t *testing.T) {
	w := newWorld(t, nil)
	w.serveForeign(func(m *session.Message) (any, error) {
		if m.Method == schema.Describe {
			return nil, wire.Errorf(wire.UnknownMethod, "no method")
		}
		var v wire.Raw
		return &v, m.Decode(&v)
	})
	const text = `{"b":[1,-1,1.5,null,true,"x"],"a":{}}`
	if o := w.pipe("", "call", foreign, "anything", text); o.code != 0 || o.out != text+"\n" {
		t.Errorf("%+v", o)
	}
	if o := w.pipe("", "call", foreign, "anything"); o.code != 0 || o.out != "null\n" {
		t.Errorf("%+v", o)
	}
	if o := w.pipe("", "methods", foreign); o.code != 1 || !strings.Contains(o.errs, "does not say which methods it has") {
		t.Errorf("%+v", o)
	}
}

func TestAHostileDescriptionIsRefusedOrEscaped(t *testing.T) {
	w := newWorld(t, nil)
	const evil = "\x1b[2J\u009b2J"
	answers := make(chan any, 1)
	w.serveForeign(func(m *session.Message) (any, error) {
		if m.Method == schema.Describe {
			return <-answers, nil
		}
		return nil, wire.Errorf(wire.Conflict, "%s", evil)
	})
	for _, bad := range []any{
		nil, "text", wire.Raw("\x81\xa1m\xdd\x00\x00\x00\x01\xc0"), schema.Description{Types: []schema.Type{{Kind: schema.Any}, {Kind: schema.Optional, Elem: 1}}},
		map[string]any{"m": strings.Repeat("x", schema.MaxSize)},
	} {
		answers <- bad
		if o := w.pipe("", "methods", foreign); bad != nil && (o.code != 1 || !strings.Contains(o.errs, "what com.example.foreign says of its methods cannot be read")) {
			t.Errorf("%.60v: %+v", bad, o)
		}
	}
	d := schema.Description{
		Endpoint: evil, Methods: []schema.Method{{Name: evil, Kind: evil, Doc: evil, Request: 1, Reply: 2}},
		Types: []schema.Type{{Kind: schema.Any}, {Kind: schema.Struct, Name: evil, Fields: []schema.Field{{Key: evil, Name: evil, Type: 2}}}, {Kind: evil}},
	}
	for _, words := range [][]string{{"methods", foreign}, {"methods", foreign, "--json"}, {"call", foreign, "x"}, {"call", foreign, evil, `{"x":1}`}, {"call", foreign, evil}} {
		answers <- d
		if o := w.pipe("", words...); strings.ContainsAny(o.out+o.errs, "\x1b\u009b") || !strings.Contains(o.out+o.errs, "1b[2J") {
			t.Errorf("%q: %+v", words, o)
		}
	}
}

// A streaming call without --timeout goes on until nobody wants it: ^C, or a reader that has gone.
func TestWhatComesIsPrintedAtOnceUntilItIsNoLongerWanted(t *testing.T) {
	for name, end := range map[string]func(p *os.Process, out *os.File) error{
		"^C":              func(p *os.Process, _ *os.File) error { return p.Signal(os.Interrupt) },
		"its reader gone": func(_ *os.Process, out *os.File) error { return out.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			w := typing(t)
			r, out, err := os.Pipe()
			w.must(err)
			cmd := w.program("call", typed, "watch", `"one"`)
			var errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = out, &errs
			w.must(cmd.Start(), out.Close())
			line, err := bufio.NewReader(r).ReadString('\n')
			if err != nil || line != "\"one\"\n" {
				t.Errorf("%q, %v", line, err)
			}
			w.must(end(cmd.Process, r))
			if err := cmd.Wait(); err != nil || errs.Len() > 0 {
				t.Errorf("%v, %q", err, errs.String())
			}
			r.Close()
		})
	}
}

func TestAStreamWhoseServiceIsKilledSaysSo(t *testing.T) {
	w := typing(t)
	cmd := w.program("call", typed, "watch", `"one"`)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	w.must(err, cmd.Start())
	_, err = out.Read(make([]byte, 1)) // it has begun
	w.must(err, syscall.Kill(int(w.details("service inspect " + typed)["pid"].(float64)), syscall.SIGKILL))
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // it fails
	w.says(errs.String(), `^brokerctl: stream watch of `+typed+`: .* \(interrupted\)\n$`)
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// The service is told that a call is over when its brokerctl is killed, whose standard input never ended.
func TestABrokerctlThatIsKilledEndsItsCall(t *testing.T) {
	w := typing(t)
	in, keep, err := os.Pipe()
	w.must(err)
	defer keep.Close()
	for _, method := range []string{"upper", "shout", "watch", "hang"} {
		cmd := w.program("call", typed, method)
		cmd.Stdin = in
		w.must(cmd.Start())
		w.until(method+" has its session", func() bool { return strings.Contains(w.done("session list --endpoint "+typed), typed) })
		w.must(cmd.Process.Signal(syscall.SIGKILL))
		_ = cmd.Wait() // killed
		w.until(method+" is over", func() bool { return !strings.Contains(w.done("session list --endpoint "+typed), typed) })
	}
	in.Close()
}

func TestOnATerminalAReplyIsIndentedAndAStreamIsEscaped(t *testing.T) {
	w := typing(t)
	master, slave := terminal(t)
	defer slave.Close()
	for _, test := range []struct {
		input string
		words []string
		want  string
	}{
		{"", []string{"call", typed, "echo", `{"title":"a","tags":["b"]}`}, "{\r\n  \"title\": \"a\",\r\n  \"tags\": [\r\n    \"b\"\r\n  ]\r\n}\r\n"},
		{"", []string{"call", typed, "echo", `{"title":"a"}`, "--json"}, "{\"title\":\"a\"}\r\n"},
		{"", []string{"call", typed, "count", "1"}, "{\"title\":\"0\"}\r\n"},
		{"\x1b[m\n", []string{"call", typed, "shout"}, "\\x1b[M\r\n"},
	} {
		cmd := w.program(test.words...)
		cmd.Stdin, cmd.Stdout = strings.NewReader(test.input), slave
		w.must(cmd.Run())
		got := make([]byte, len(test.want))
		for n := 0; n < len(got); {
			m, err := master.Read(got[n:])
			w.must(err)
			n += m
		}
		if string(got) != test.want {
			t.Errorf("%q: %q, want %q", test.words, got, test.want)
		}
	}
}

func TestAcceptTakesEveryCodeOfTheProtocol(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "\nCodes: ")
	list, _, _ = strings.Cut(list, ".")
	codes := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", \n", r) })
	if len(codes) < 20 {
		t.Fatalf("%q", codes)
	}
	for _, code := range codes {
		var said strings.Builder
		if exit := brokerctl.Run([]string{"call", "x", "y", "--accept", code, "--socket", "/x/s"}, &said, &said); exit != 5 { // no broker
			t.Errorf("%s: %s", code, said.String())
		}
	}
}
