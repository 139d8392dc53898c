package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
)

func TestAListIsShownAsItsFlagsSay(t *testing.T) {
	w := newWorld(t, map[string]string{
		"a": shell("com.example.a", "exit 1", ""), "b": working(t, ""), "c": shell("com.example.c", "exit 1", ""),
	})
	w.done("service start " + echo)
	for line, want := range map[string]string{
		"service list --columns name,state --sort name --limit 2":                         "NAME           STATE\ncom.example.a  stopped\ncom.example.c  stopped\n2 of 4 services: 2 running, with 1 session\n",
		"service list --columns state,name --sort starts --reverse --no-legend --limit 1": "running  com.example.echo\n",
		"service list --columns last_exit --no-legend --limit 1":                          "-\n",
		"session list --columns title --no-legend":                                        "brokerctl\n",
	} {
		if got := w.done(line); got != want {
			t.Errorf("%s:\n%s, want\n%s", line, got, want)
		}
	}
	var list struct {
		Services []struct{ Name string }
		Total    int
	}
	w.must(json.Unmarshal([]byte(w.done("service list --json --sort name --reverse --limit 1")), &list))
	if len(list.Services) != 1 || list.Services[0].Name != "fairlead.broker" || list.Total != 4 {
		t.Errorf("as JSON it is %+v", list)
	}
	for line, says := range map[string]string{
		"service list --sort nmae":             `service list: no column "nmae": is it name\?`,
		"session list --columns uid,tilte":     `no column "tilte": is it title\?`,
		"service list --limit -1":              `--limit -1`,
		"service list --json --columns name":   `--columns are for tables`,
		"service inspect x --sort name":        `--sort is a flag of .*session list.* and not of service inspect`,
		"session list --endpiont x":            `unknown flag: --endpiont: is it --endpoint\?`,
		"session list --end interupted":        `--end: no error has the code interupted: is it interrupted\?`,
		"service list --watch=1ms":             `--watch 1ms: want 100ms or more`,
		"session list --uid nobody":            `--uid "nobody": want a whole number`,
		"session list --columns id --state no": `state "no"`,
	} {
		o := w.ctl(line)
		w.says(o.errs, says)
		if o.code != 2 || o.out != "" {
			t.Errorf("%s: exit code %d, %s", line, o.code, o.out)
		}
	}
}

func TestSessionsAreFoundByWhatIsKnownOfThem(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "")})
	s := w.broker.Dial(echo, client.Options{Title: "nightly backup"})
	gone := w.broker.Dial(echo, client.Options{Title: "daily backup"})
	w.until("both are open", func() bool { return strings.Count(w.done("session list --endpoint "+echo), " open ") == 2 })
	w.done("session close " + gone.ID())
	pid := s.Peer().PID
	for line, want := range map[string]string{
		"--title nightly":                                        "nightly backup\n",
		"--title backup --state all":                             "nightly backup\ndaily backup\n",
		"--title backup --end interrupted":                       "daily backup\n",
		"--title backup --end invalid":                           "",
		"--title backup --end interrupted --state open":          "",
		fmt.Sprintf("--pid %d", pid):                             "nightly backup\n",
		fmt.Sprintf("--pid %d --title back", os.Getpid()):        "nightly backup\n",
		"--pid 1 --endpoint " + echo:                             "",
		fmt.Sprintf("--uid %d --endpoint %s", os.Getuid(), echo): "nightly backup\n",
		"--uid 4294967295 --state all":                           "",
		"--uid 4294967294 --endpoint " + echo:                    "",
	} {
		if got := w.done("session list --no-legend --columns title " + line); got != want {
			t.Errorf("session list %s: %q, want %q", line, got, want)
		}
	}
}

func TestAWatchedListIsPrintedAsBlocksAndAsALineOfJSONEach(t *testing.T) {
	w := newWorld(t, nil)
	f := w.starts("service", "list", "--watch=100ms", "--columns", "name")
	for range 3 {
		for _, want := range []string{"NAME\n", "fairlead.broker\n", "\n"} {
			if got := f.line(w); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	}
	w.must(f.cmd.Process.Signal(os.Interrupt))
	f.exits(w)
	j := w.starts("status", "--watch=100ms", "--json")
	for range 3 {
		var status struct{ Version int }
		if w.must(json.Unmarshal([]byte(j.line(w)), &status)); status.Version != 1 {
			t.Fatal(status)
		}
	}
	w.must(j.end.Close()) // as head does
	j.exits(w)
}

// shown runs brokerctl on a terminal of some size until it has shown a text, and returns what it wrote until then.
func (w *world) shown(rows uint16, until string, environment []string, words ...string) string {
	w.Helper()
	master, slave := terminal(w.T)
	w.must(unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: 80}))
	cmd := w.program(words...)
	cmd.Stdout, cmd.Stderr, cmd.Env = slave, slave, append(cmd.Env, environment...)
	w.must(cmd.Start(), slave.Close(), master.SetReadDeadline(time.Now().Add(patience)))
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var said []byte
	for b := make([]byte, 4096); !regexp.MustCompile(until).Match(said); {
		n, err := master.Read(b)
		if said = append(said, b[:n]...); err != nil {
			w.Fatalf("%v: %q has not %q", err, said, until)
		}
	}
	return string(said)
}

func TestOnATerminalAListHasColoursAndIsWatchedInPlace(t *testing.T) {
	files := map[string]string{}
	for n := range 20 {
		files[fmt.Sprint(n)] = shell(fmt.Sprintf("com.example.s%02d", n), "exit 1", "")
	}
	w := newWorld(t, files)
	said := w.shown(10, `(?s)more lines.*\x1b\[H.*more lines`, nil, "service", "list", "--watch=100ms")
	w.says(said, `^\x1b\[\?7l\x1b\[2J\x1b\[Hbrokerctl service list, every 100ms: \d\d:\d\d:\d\d\x1b\[K\r$`, `^… 14 more lines\x1b\[K\x1b\[J\x1b\[H`, `\x1b\[1mNAME\x1b\[0m`)
	if n := strings.Count(strings.Split(said, "more lines")[0], "\r\n"); n != 9 {
		t.Errorf("a block has %d lines beside the last, on a terminal of 10:\n%q", n, said)
	}
	w.says(w.shown(24, `running`, nil, "service", "list"), `\x1b\[32mrunning\x1b\[0m`)
	if said := w.shown(24, `running`, []string{"NO_COLOR=1"}, "service", "list"); strings.Contains(said, "\x1b") {
		t.Errorf("with NO_COLOR it is %q", said)
	}
}

func TestAloneItPrintsTheStatusAndSaysWhereHelpIs(t *testing.T) {
	w := newWorld(t, nil)
	o := w.ctl("")
	w.says(o.out, `^broker `, `^socket `)
	if o.code != 0 || o.errs != "try 'brokerctl --help'\n" {
		t.Errorf("exit code %d, %q", o.code, o.errs)
	}
	t.Setenv("FAIRLEAD_SOCKET", filepath.Join(t.TempDir(), "none"))
	var errs strings.Builder
	if code := brokerctl.Run(nil, io.Discard, &errs); code != 5 || !strings.Contains(errs.String(), "no broker") || !strings.Contains(errs.String(), "--help") {
		t.Errorf("without a broker: exit code %d, %q", code, errs.String())
	}
}

// examples returns the commands of the examples in a help text.
func examples(help string) (lines []string) {
	_, text, _ := strings.Cut(help, "\nexamples:\n")
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func TestEachCommandHasAHelpWithExamplesThatAreNotMistyped(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("FAIRLEAD_SOCKET", filepath.Join(folder, "none"))
	if err := os.WriteFile(filepath.Join(folder, "request.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "brokerctl")
	script := fmt.Sprintf("#!/bin/sh\nexport %s=brokerctl GORACE=atexit_sleep_ms=0\nexec /proc/%d/exe \"$@\"\n", roleVariable, os.Getpid())
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range brokerctl.Commands() {
		var help, other strings.Builder
		if code := brokerctl.Run(append([]string{"help"}, strings.Fields(name)...), &help, io.Discard); code != 0 {
			t.Errorf("help %s: exit code %d", name, code)
			continue
		}
		if code := brokerctl.Run(append(strings.Fields(name), "--help"), &other, io.Discard); code != 0 || other.String() != help.String() {
			t.Errorf("%s --help: exit code %d, and it is another help", name, code)
		}
		lines := examples(help.String())
		if len(lines) == 0 {
			t.Errorf("%s has no example:\n%s", name, help.String())
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, "brokerctl "+name) {
				t.Errorf("%q is no example of %s", line, name)
			}
			if strings.HasPrefix(name, "bench") { // which takes its time
				continue
			}
			line, _, _ = strings.Cut(line, " >")
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", line)
			cmd.Env, cmd.Dir = append(os.Environ(), "PATH="+folder+":/bin:/usr/bin"), folder
			said, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != 0 && code != 5 { // there is no broker
				t.Errorf("%s: exit code %d: %s", line, code, said)
			}
		}
	}
	var help strings.Builder
	brokerctl.Run([]string{"help", "sesion"}, io.Discard, &help)
	if !strings.Contains(help.String(), "session list") {
		t.Errorf("help of what is mistyped: %s", help.String())
	}
}
