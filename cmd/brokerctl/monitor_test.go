package main_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
)

// starts begins brokerctl as a process whose output is a pipe.
func (w *world) starts(words ...string) followed {
	w.Helper()
	return w.followed(w.program(words...))
}

// event waits for an event of a kind of a service, as JSON.
func (f followed) event(w *world, kind, service string) map[string]any {
	w.Helper()
	for {
		var e map[string]any
		w.must(json.Unmarshal([]byte(f.line(w)), &e))
		if e["kind"] == kind && e["service"] == service {
			return e
		}
	}
}

func TestMonitorPrintsWhatWasAndWhatComesALineEach(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, ""), "broken": shell("com.example.broken", `exit 3`, ""),
		"missing": "name = \"com.example.missing\"\nprogram = [\"/no/such/program\"]\n"})
	w.done("service start " + echo)
	m := w.starts("monitor", "--since", "1h", "--filter", "service,instance")
	const at = `^\d\d:\d\d:\d\d\.\d{3}  `
	for _, want := range []string{
		at + `service_state          com.example.echo is starting, was stopped\n$`,
		at + `instance_started       com.example.echo \(instance 1, pid \d+\): a command of process \d+ \(.*, uid \d+\)\n$`,
		at + `instance_registered    com.example.echo \(instance 1, pid \d+\)\n$`,
		at + `service_state          com.example.echo is running, was starting\n$`,
	} {
		w.says(m.line(w), want)
	}
	for service, want := range map[string]string{
		"com.example.broken":  `com.example.broken \(instance 1, pid \d+\): exit status 3, before it registered\n$`,
		"com.example.missing": `com.example.missing \(instance 1\) could not be started: .*/no/such/program`,
	} {
		w.ctl("service start " + service)
		line := ""
		for !strings.Contains(line, "instance_ended") {
			if line = m.line(w); strings.Contains(line, "session") {
				t.Errorf("%q was not asked for", line)
			}
		}
		w.says(line, at+"instance_ended +"+want)
	}
	w.must(m.cmd.Process.Signal(os.Interrupt))
	m.exits(w)
}

func TestMonitorSaysWhichEndsTheBrokerHasMade(t *testing.T) {
	for _, test := range []struct {
		pid  int
		exit broker.Exit
		want string
	}{
		{7, broker.Exit{Status: "exit status 3"}, "com.example.echo (instance 2, pid 7): exit status 3"},
		{7, broker.Exit{Status: "exit status 0", Unregistered: true}, "com.example.echo (instance 2, pid 7): exit status 0, before it registered"},
		{7, broker.Exit{Status: "signal: killed", Why: "it has not registered within 1s"},
			"com.example.echo (instance 2, pid 7): signal: killed, by the broker, as it has not registered within 1s"},
		{0, broker.Exit{Status: "not started", Why: "execute /x: no such file or directory"},
			"com.example.echo (instance 2) could not be started: execute /x: no such file or directory"},
	} {
		if got := brokerctl.InstanceEnded(broker.Event{Service: echo, Instance: 2, PID: test.pid, Exit: &test.exit}); got != test.want {
			t.Errorf("%+v is told as %q, want %q", test.exit, got, test.want)
		}
	}
}

func TestMonitorPrintsJSONWithTheFieldsOfEachKind(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "")})
	m := w.starts("monitor", "--since", "0", "--json")
	s := w.broker.Dial(echo, client.Options{Title: "a title"})
	opened := m.event(w, "session_opened", echo)
	s.Close()
	closed := m.event(w, "session_closed", echo)
	w.has("an opened session", opened, []string{"version", "seq", "at", "kind", "service", "endpoint", "instance", "pid", "session", "title", "client"})
	w.has("its client", opened["client"].(map[string]any), []string{"pid", "uid", "gid", "program"})
	w.has("its end", closed["end"].(map[string]any), []string{"code", "origin", "text"})
	if opened["version"] != 1.0 || opened["session"] != s.ID() || closed["session"] != s.ID() || opened["seq"].(float64) >= closed["seq"].(float64) {
		t.Errorf("%v, %v", opened, closed)
	}
	w.done("service stop " + echo)
	ended := m.event(w, "instance_ended", echo)
	w.has("an exit", ended["exit"].(map[string]any), []string{"instance", "at", "status"})
	w.has("a state", m.event(w, "service_state", echo), []string{"was", "state"})
	w.done("service reload")
	for reload := ""; !strings.Contains(reload, `"kind":"reload","reload":{"added":0,"changed":0,"removed":0,"problems":0}}`); {
		reload = m.line(w)
	}
	w.must(m.end.Close()) // and nobody reads any more
	m.exits(w)
}

func TestMonitorRefusesWhatIsMistypedAndSaysThatTheBrokerHasStopped(t *testing.T) {
	w := newWorld(t, nil)
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"monitor --filter denid":           {2, `--filter: no event has the kind denid: is it denied\?`},
		"monitor --since yesterday":        {2, `--since "yesterday": want a time`},
		"monitor --since -5m":              {2, `--since "-5m"`},
		"monitor --since 1000000":          {3, `event 1000000 has not been`},
		"monitor x":                        {2, `unexpected "x"$`},
		"status --watch 5s":                {2, `unexpected "5s": is it --watch=5s\?$`},
		"monitor 5s":                       {2, `unexpected "5s"$`},
		"status --since 5m":                {2, `--since is a flag of monitor and not of status`},
		"session list --filter denied":     {2, `--filter is a flag of monitor`},
		"service list --leave-instances":   {2, `--leave-instances is a flag of shutdown`},
		"monitor --columns kind --since 0": {2, `--columns is a flag of`},
	} {
		o := w.ctl(line)
		w.says(o.errs, want.says)
		if o.code != want.code || o.out != "" {
			t.Errorf("%s: exit code %d, want %d: %s", line, o.code, want.code, o.out)
		}
	}
	m := w.starts("monitor", "--since", "0")
	m.line(w)
	w.says(w.done("shutdown"), `^the broker at .*/broker.sock \(pid \d+\) is stopped\n$`)
	for {
		if _, err := m.out.ReadString('\n'); err != nil {
			break
		}
	}
	if m.cmd.Wait(); m.cmd.ProcessState.ExitCode() == 0 {
		t.Error("the end of the broker is no failure")
	}
	if o := w.ctl("shutdown"); o.code != 5 {
		t.Errorf("shutdown without a broker: exit code %d, %s", o.code, o.errs)
	}
}
