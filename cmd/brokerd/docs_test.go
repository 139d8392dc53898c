package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/docs/examples/counter"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const docs = "../../docs/systemd"

// settings returns the values of a key in a unit file.
func settings(t *testing.T, unit, key string) (values []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docs, unit))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			values = append(values, value)
		}
	}
	return values
}

func TestTheUnitsStartTheBrokerWhereTheirSocketsAre(t *testing.T) {
	for _, test := range []struct{ folder, flag, socket string }{
		{".", "--system", socket.SystemPath},
		{"user", "--user", "%t/fairlead/broker.sock"},
	} {
		service, unit := filepath.Join(test.folder, "fairlead.service"), filepath.Join(test.folder, "fairlead.socket")
		if got := settings(t, unit, "ListenStream"); len(got) != 1 || got[0] != test.socket {
			t.Errorf("%s listens at %q, want %s", unit, got, test.socket)
		}
		start := settings(t, service, "ExecStart")
		if len(start) != 1 {
			t.Errorf("%s starts %q", service, start)
			continue
		}
		args := strings.Fields(start[0])
		if want := "/usr/bin/brokerd serve " + test.flag + " --leave-instances"; start[0] != want {
			t.Errorf("%s starts %q, want %q", service, start[0], want)
		}
		if out, err := exec.CommandContext(t.Context(), binary, append(args[1:], "--help")...).CombinedOutput(); err != nil {
			t.Errorf("%s: brokerd does not take %q: %v\n%s", service, args[1:], err, out)
		}
	}
}

// example returns the text of the example of a service file.
func example(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docs, "example", "com.example.counter.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheServiceFilesOfTheDocumentationAreRight(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(docs, "example", "*.toml"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	p := newPlace(t)
	for _, path := range paths { // as they are installed, whatever the umask was when the source was checked out
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p.write(filepath.Base(path), string(text))
	}
	if out, err := exec.CommandContext(t.Context(), binary, "check", "--config-dir", p.dir).CombinedOutput(); err != nil {
		t.Errorf("brokerd check: %v\n%s", err, out)
	}
}

func TestTheExampleOfAServiceWorks(t *testing.T) {
	p := newPlace(t)
	counterd, err := build(p.dir, "../../docs/examples/counter/counterd")
	if err != nil {
		t.Fatal(err)
	}
	text := example(t)
	installed := strings.Replace(text, "/usr/local/bin/counterd", counterd, 1)
	if installed == text {
		t.Fatal("the example starts something else")
	}
	if os.Geteuid() != 0 { // who cannot become another user has it run as himself
		installed = strings.Replace(installed, "user = \"nobody\"\n", "", 1)
	}
	p.write("counter.toml", installed)
	d := p.serve()
	s := p.dial(counter.Endpoint)
	total, err := client.Call[counter.Total](within(t), s, "add", counter.Add{Counter: "visits", By: 1})
	if err != nil || total.Total != 1 {
		t.Errorf("the counter is at %v, %v", total, err)
	}
	if got := p.inspect(counter.Endpoint); len(got.Allow.Open) != 1 || got.KeepAlive != "on_failure" || os.Geteuid() == 0 && got.User != "nobody" {
		t.Errorf("the service: %+v", got)
	}
	s.Close()
	d.stop()
}
