package main_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/client"
)

// says checks that a text matches each of the patterns, in which . is no line feed and ^ and $ are those of lines.
func (w *world) says(text string, patterns ...string) {
	w.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(text) {
			w.Errorf("%q is not said in\n%s", p, text)
		}
	}
}

func TestAServiceIsStartedStoppedAndStartedAgain(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "")})
	w.says(w.done("service why "+echo), `^com.example.echo is stopped, as nothing has wanted it yet: the next open of com.example.echo starts it\.$`)
	w.says(w.done("service stop "+echo), `^com.example.echo was not running$`)
	w.says(w.done("service start "+echo), `^started com.example.echo: instance 1, pid \d+\n$`)
	w.says(w.done("service start "+echo), `^com.example.echo is running already: instance 1, pid \d+$`)
	w.says(w.done("service wait "+echo), `^com.example.echo is ready: instance 1, pid \d+$`)
	w.says(w.done("service why "+echo), fmt.Sprintf(`^com.example.echo \(instance 1\) was started \d+s ago: a command of process %d \(.+, uid %d\)\.\n$`, os.Getpid(), os.Getuid()))
	w.says(w.done("service restart "+echo), `^restarted com.example.echo: instance 2, pid \d+$`)
	w.says(w.done("service list"), `^NAME +STATE +PID +SINCE +STARTS +LAST EXIT +SESSIONS +ENDPOINTS$`,
		`^com.example.echo +running +\d+ +\d+s +2 +exit status 0 +0 +com.example.echo$`, `^fairlead.broker +running `)
	w.says(w.done("service stop "+echo), `^stopped com.example.echo: instance 2: exit status 0$`)
	w.says(w.done("service list"), `^com.example.echo +stopped +- +\d+s +2 +exit status 0 +0 +com.example.echo$`)
	w.says(w.done("service why "+echo), `^com.example.echo was stopped \d+s ago by a command of process \d+ .*: the next open of`, `^Instance 2 was started \d+s ago: a command`, `^Instance 2 ended \d+s ago: exit status 0\.$`)
	w.says(w.done("service reset "+echo), `^reset com.example.echo: its failures are forgotten, and it is stopped$`)
}

func TestWhyNamesTheClientWhoseOpenStartedTheServiceAndWhatKeptItAlive(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "keep_alive = \"on_crash\"\nthrottle_interval = \"10ms\"\n")})
	w.broker.Dial(echo, client.Options{})
	w.says(w.done("service why "+echo), fmt.Sprintf(`^com.example.echo \(instance 1\) was started \d+s ago: client %d \(.+, uid %d\) opened com.example.echo\.\n$`, os.Getpid(), os.Getuid()))
	pid := int(w.details("service inspect " + echo)["pid"].(float64))
	w.must(syscall.Kill(pid, syscall.SIGKILL))
	w.until("the next instance runs", func() bool {
		d := w.details("service inspect " + echo)
		return d["state"] == "running" && d["instance"] == 2.0
	})
	w.says(w.done("service why "+echo), `^com.example.echo \(instance 2\) was started \d+s ago: keep_alive is on_crash, and instance 1 had ended: signal: killed\.$`,
		`^Instance 1 ended \d+s ago: signal: killed; `)
}

func TestInspectShowsAllThatHasAValueAndJSONEveryField(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "idle_exit = \"1m\"\n[allow]\nopen = [\"any\"]\nadmin = [\"uid:7\", \"gid:8\"]\n")})
	w.done("service start " + echo)
	text := w.done("service inspect " + echo)
	w.says(text, `^name +com.example.echo$`, `^file +/.*/services.d/echo.toml$`, `^state +running$`, `^pid +\d+$`, `^instance +1$`, `^started +20.* ago\)$`,
		`^cause +a command of process \d+ `, `^endpoints +com.example.echo$`, `^sessions +0$`, `^starts +1$`, `^log +/.*/com.example.echo.log$`,
		`^program +/.* com.example.echo$`, `^keep_alive +never$`, `^throttle_interval +10s$`, `^start_timeout +10s$`, `^stop_timeout +20s$`, `^idle_exit +1m0s$`,
		`^allow.open +any$`, `^allow.admin +uid:7, gid:8$`)
	for _, absent := range []string{"waiting", "failures", "pending", "last exit", "user", "run_at_load", "allow.register"} {
		if strings.Contains(text, "\n"+absent+" ") {
			t.Errorf("%s has no value, and is shown:\n%s", absent, text)
		}
	}
	info := []string{"due_at", "endpoints", "instance", "last_exit", "name", "pending", "pid", "sessions", "started_at", "starts", "state"}
	more := []string{
		"allow", "cause", "failures", "file", "group", "idle_exit", "keep_alive", "keeper", "log", "program", "run_at_load", "start_timeout", "stop_timeout",
		"throttle_interval", "user", "waiting",
	}
	d := w.details("service inspect " + echo)
	w.has("service inspect", d, append(more, info...))
	w.has("its allow", d["allow"].(map[string]any), []string{"admin", "open", "register"})
	w.has("its cause", d["cause"].(map[string]any), []string{"at", "client", "kind"})
	if d["start_timeout"] != 1e10 || d["allow"].(map[string]any)["register"] == nil {
		t.Errorf("%v: want 10 s in ns, and an empty list that is no null", d)
	}
	w.has("service list", w.member("services", "service list").([]any)[0].(map[string]any), info)
	w.has("service restart", w.details("service restart "+echo), append(more, info...))
	w.has("its last exit", w.details("service stop " + echo)["last_exit"].(map[string]any), []string{"at", "instance", "status"})
}

// has checks that an object of JSON has these fields. There may be more one day.
func (w *world) has(what string, object map[string]any, fields []string) {
	w.Helper()
	for _, f := range fields {
		if _, there := object[f]; !there {
			w.Errorf("%s has no %s: %v", what, f, slices.Sorted(maps.Keys(object)))
		}
	}
}

func TestEachFailureOfAStartSaysWhatItWasAndHasItsExitCode(t *testing.T) {
	w := newWorld(t, map[string]string{
		"broken":  shell("com.example.broken", `echo "no configuration" >&2; exit 3`, ""),
		"deaf":    shell("com.example.deaf", `exec sleep 1000`, `start_timeout = "300ms"`),
		"missing": "name = \"com.example.missing\"\nprogram = [\"/no/such/program\"]\n",
		"nobodys": "name = \"com.example.nobodys\"\n",
	})
	for _, test := range []struct {
		line string
		code int
		says string
	}{
		{"service start com.example.broken", 3, `exit status 3; .*no configuration.*\(start_failed\)`},
		{"service restart com.example.broken", 3, `no configuration`},
		{"service start com.example.deaf", 3, `has not registered within 300ms.*\(start_timeout\)`},
		{"service start com.example.missing", 3, `/no/such/program.*\(start_failed\)`},
		{"service start com.example.nobodys", 3, `no program`},
		{"service start com.example.brokne", 3, `is it com.example.broken`},
		{"service inspect com.example.brokne", 3, `is it com.example.broken`},
		{"service why com.example.brokne", 3, `is it com.example.broken`},
		{"service stop com.example.brokne", 3, `is it com.example.broken`},
		{"service reset com.example.brokne", 3, `is it com.example.broken`},
		{"service logs com.example.brokne", 3, `is it com.example.broken`},
		{"service logs com.example.nobodys", 3, `com.example.nobodys has no log`},
		{"service logs com.example.broken -n 10001", 2, `10001 lines`},
		{"service start a..b", 2, `a\.\.b`},
		{"service wait com.example.nobodys --timeout 100ms", 6, `not within 100ms; 'brokerctl service why com.example.nobodys'`},
	} {
		o := w.ctl(test.line)
		if o.code != test.code || o.out != "" {
			t.Errorf("%s: exit code %d, want %d, and it prints %q", test.line, o.code, test.code, o.out)
		}
		w.says(o.errs, test.says)
	}
	w.says(w.done("service why com.example.nobodys"), "^com.example.nobodys is stopped: its service file has no program")
}

func TestAServiceThatFailsTooOftenIsSuspendedUntilItIsReset(t *testing.T) {
	w := newWorld(t, map[string]string{"broken": shell("com.example.broken", `echo "no configuration" >&2; exit 3`, "")})
	var o outcome
	for range 6 {
		o = w.ctl("service start com.example.broken")
		if o.code != 3 {
			t.Fatalf("exit code %d: %s", o.code, o.errs)
		}
		w.until("what has failed is gone", func() bool { return w.details("service inspect com.example.broken")["state"] != "starting" })
	}
	w.says(o.errs, `suspended until .*'brokerctl service reset com.example.broken'.*no configuration.*\(suspended\)`)
	w.says(w.done("service list"), `^com.example.broken +suspended until \d\d:\d\d:\d\d +- +\d+s +5 +exit status 3, before it registered +0 `)
	w.says(w.done("service inspect com.example.broken"), `^state +suspended until 20.* \(in .*\)$`, `^last exit +instance 5: exit status 3, before it registered, \d+s ago$`, `^stderr +no configuration$`)
	w.says(w.done("service why com.example.broken"), `^com.example.broken is suspended until \d\d:\d\d:\d\d \(in .*\), .*'brokerctl service reset com.example.broken' lifts that\.$`,
		`^Instance 5 was started \d+s ago: a command of process`, `^Instance 5 ended before it registered \d+s ago: exit status 3; the last it wrote on stderr:$`, `^  no configuration$`)
	w.says(w.done("service reset com.example.broken"), `^reset com.example.broken: .* it is stopped$`)
	w.says(w.ctl("service start com.example.broken").errs, `\(start_failed\)`)
}

func TestAReloadSaysWhatHasChangedAndNamesEachProblemWithItsLine(t *testing.T) {
	w := newWorld(t, map[string]string{
		"echo":  working(t, ""),
		"first": shell("com.example.first", "exit 1", ""),
		"last":  shell("com.example.last", "exit 1", ""),
	})
	w.says(w.done("service reload"), `^nothing has changed\n$`)
	w.done("service start " + echo)
	w.write("echo", working(t, "nice = 1"))
	w.write("first", shell("com.example.first", "exit 2", ""))
	w.write("new", shell("com.example.new", "exit 1", ""))
	w.must(os.Remove(w.path("last")))
	w.says(w.done("service reload"), `^added    com.example.new$`, `^changed  com.example.echo \(pending: it takes effect at its next start\)$`,
		`^changed  com.example.first$`, `^removed  com.example.last$`)
	w.says(w.done("service list"), `^com.example.echo +running \(changed\) `)
	w.says(w.done("service why "+echo), `^Its service file has changed, which takes effect at its next start\.$`)
	w.done("service restart " + echo)
	w.says(w.done("service list"), `^com.example.echo +running +\d`)

	w.write("first", "name = \"com.example.first\"\nnicer = 3\n")
	w.must(os.Remove(w.path("echo")), os.Remove(w.path("new")))
	problem := "^" + regexp.QuoteMeta(w.path("first")) + `:2: nicer: `
	o := w.ctl("service reload")
	w.says(o.out, `^removed  com.example.echo \(pending: it is gone when its instance has ended\)$`, `^removed  com.example.new$`)
	w.says(o.errs, problem, `^brokerctl: 1 file skipped: what was read before stays`)
	if o.code != 1 || strings.Contains(o.out, "com.example.first") {
		t.Errorf("exit code %d, %s", o.code, o.out)
	}
	o = w.ctl("service reload --json")
	w.says(o.errs, problem)
	w.says(o.out, `"file": ".*first.toml",$`, `"line": 2,$`, `"key": "nicer",$`, `"added": \[\],$`)
	if o.code != 1 {
		t.Errorf("exit code %d", o.code)
	}
	w.done("service stop " + echo)
	w.says(w.ctl("service start "+echo).errs, `no service file declares com.example.echo|service com.example.echo was removed`)
}

func TestWhoMayNotIsToldTheRule(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	const nobody = 65534
	w := newWorld(t, map[string]string{"echo": working(t, "[allow]\nadmin = [\"uid:7\"]\n")})
	program, err := os.ReadFile("/proc/self/exe")
	copied := filepath.Join(filepath.Dir(w.broker.Socket), "brokerctl")
	w.must(err, os.Chmod(filepath.Dir(w.broker.Socket), 0o755), os.WriteFile(copied, program, 0o755))
	for words, rule := range map[string]string{
		"service start " + echo: `allow\.admin of com\.example\.echo \(uid:7\)`, "service stop " + echo: `allow\.admin`, "service why " + echo: `allow\.admin`,
		"service logs " + echo: `allow\.admin`, "service reload": `only root may`, "call " + echo + " echo": `allow\.open of com\.example\.echo \(empty\)`,
	} {
		cmd := w.program(strings.Fields(words)...)
		cmd.Path, cmd.Dir = copied, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		said, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 4 {
			t.Errorf("%s: exit code %d, want 4: %v", words, code, err)
		}
		w.says(string(said), `uid 65534 may not .*only root.*\(not_permitted\)`, rule)
	}
}

func TestAStartThatTakesLongerThanTheTimeoutIsGivenUpAndGoesOn(t *testing.T) {
	w := newWorld(t, map[string]string{"slow": shell("com.example.slow", "exec sleep 1000", "")})
	o := w.ctl("service start com.example.slow --timeout 200ms")
	if o.code != 6 || o.out != "" {
		t.Errorf("exit code %d, %q", o.code, o.out)
	}
	w.says(o.errs, `^brokerctl: start com.example.slow: not within 200ms; 'brokerctl service why com.example.slow' says how it is`)
	w.says(w.done("service why com.example.slow"), `^com.example.slow is starting: it has not registered yet, for which it has 10s\.$`, `^Instance 1 was started \d+s ago: a command of process`)
	w.says(w.done("service stop com.example.slow"), `^stopped com.example.slow: instance 1: signal: terminated$`)
}
