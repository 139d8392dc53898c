package main_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
)

// offered are the words that a line's last word may become.
func (w *world) offered(words ...string) (list []string) {
	w.Helper()
	var out strings.Builder
	if code := brokerctl.Run(append([]string{"__complete", "--socket", w.broker.Socket}, words...), &out, io.Discard); code != 0 {
		w.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(out.String()) {
		word, _, _ := strings.Cut(line, "\t")
		list = append(list, word)
	}
	return list
}

func TestWordsFlagsAndLiveNamesAreOffered(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "")})
	s := w.broker.Dial(echo, client.Options{Title: "a\ttitle\x1b[2J"})
	w.until("the session is open", func() bool { return strings.Contains(w.done("session list --endpoint "+echo), " open ") })
	for line, want := range map[string][]string{
		"ser":                            {"service"},
		"service st":                     {"start", "stop"},
		"service start com":              {echo},
		"service start x ":               nil,
		"service inspect fairlead.":      {"fairlead.broker"},
		"session inspect " + s.ID()[:6]:  {s.ID()},
		"session list --state ":          {"open", "closed", "all"},
		"session list --state=c":         {"--state=closed"},
		"session list --endpoint com":    {echo},
		"--json session list --titl":     {"--title"},
		"session list --end inter":       {"interrupted", "internal"},
		"session list --sort ti":         {"title"},
		"lease list --network ":          nil, // the network service is not started for this
		"methods com":                    {echo},
		"call com":                       {echo},
		"monitor --filter session":       {"session_opened", "session_closed"},
		"explain over":                   {"over_quota"},
		"completion ":                    {"bash", "zsh", "fish"},
		"help service w":                 {"wait", "why"},
		"status --st":                    nil, // of another command
		"shutdown --l":                   {"--leave-instances"},
		"service logs -n ":               nil, // a number
		"nonsense ":                      nil,
		"session list --no-such-flag --": {"--state", "--endpoint"},
	} {
		words := strings.Split(line, " ")
		var got []string
		for deadline := time.Now().Add(patience); ; { // what has no answer in its 200 ms is not offered
			got = w.offered(words...)
			if strings.HasSuffix(line, "--") {
				got = got[:min(len(got), len(want))]
			}
			if slices.Equal(got, want) || time.Now().After(deadline) {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	var out strings.Builder
	brokerctl.Run([]string{"__complete", "--socket", w.broker.Socket, "session", "inspect", s.ID()}, &out, io.Discard)
	if strings.Count(out.String(), "\t") != 1 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q: what is said of a session is not escaped", out.String())
	}
}

func TestNothingIsOfferedWhereTheBrokerIsGoneOrSilent(t *testing.T) {
	silent := filepath.Join(t.TempDir(), "silent") // takes connections, and never says a word
	l, err := net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, at := range []string{silent, filepath.Join(t.TempDir(), "none")} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "__complete", "--socket", at, "service", "start", "")
		cmd.Env = append(os.Environ(), roleVariable+"=brokerctl")
		late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("%s: %v, %q", filepath.Base(at), err, said)
		}
		late.Stop()
	}
}

// A typist is a shell on a terminal.
type typist struct {
	*world
	master *os.File
	said   strings.Builder
}

// types starts a shell in which brokerctl is this program.
func (w *world) types(shell string, args ...string) *typist {
	w.Helper()
	folder := w.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexport %s=brokerctl GORACE=atexit_sleep_ms=0\nexec /proc/%d/exe \"$@\"\n", roleVariable, os.Getpid())
	w.must(os.WriteFile(filepath.Join(folder, "brokerctl"), []byte(script), 0o755))
	master, slave := terminal(w.T)
	cmd := exec.Command(shell, args...)
	cmd.Env = []string{"PATH=" + folder + ":/bin:/usr/bin", "HOME=" + folder, "TERM=dumb", "PS1=> ", "FAIRLEAD_SOCKET=" + w.broker.Socket}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = folder, slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // its standard input
	w.must(cmd.Start(), slave.Close(), master.SetReadDeadline(time.Now().Add(2*patience)))
	w.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &typist{world: w, master: master}
}

// press types keys, and waits until the shell says something.
func (s *typist) press(keys, until string) {
	s.Helper()
	s.said.Reset()
	if _, err := s.master.WriteString(keys); err != nil {
		s.Fatal(err)
	}
	for b := make([]byte, 4096); !regexp.MustCompile(until).MatchString(s.said.String()); {
		n, err := s.master.Read(b)
		if s.said.Write(b[:n]); err != nil {
			s.Fatalf("%v: after %q it says %q, and not %q", err, keys, s.said.String(), until)
		}
	}
}

// completes types lines whose words a tab completes: what they print shows what they became.
func (s *typist) completes(id string) {
	s.Helper()
	s.press("brokerctl service insp\tcom.ex\t\n", `name +`+echo)
	s.press("brokerctl session inspect "+id[:8]+"\t\n", `id +`+id)
	s.press("brokerctl --json session list --state=cl\t --titl\tno-such --no-such-flag\n", `unknown flag: --no-such-flag`)
	s.press("brokerctl session list --no-legend --columns endpoint --state=op\t --endpoint com.ex\t\n", `\n`+echo+"\r\n")
}

func TestTheCompletionsWorkInTheirShells(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "")})
	s := w.broker.Dial(echo, client.Options{})
	w.until("the session is open", func() bool { return strings.Contains(w.done("session list --endpoint "+echo), " open ") })
	t.Run("bash", func(t *testing.T) {
		shell := (&world{T: t, folder: w.folder, broker: w.broker}).types("bash", "--norc", "--noprofile", "-i")
		shell.press("eval \"$(brokerctl completion bash)\" && echo re''ady\n", "ready\r\n")
		shell.completes(s.ID())
	})
	t.Run("zsh", func(t *testing.T) {
		needsShell(t, "zsh")
		shell := (&world{T: t, folder: w.folder, broker: w.broker}).types("zsh", "-f", "-i")
		shell.press("autoload -U compinit && compinit -u -D && eval \"$(brokerctl completion zsh)\" && echo re''ady\n", "ready\r\n")
		shell.completes(s.ID())
	})
	t.Run("zsh, as a file of its own", func(t *testing.T) {
		needsShell(t, "zsh")
		shell := (&world{T: t, folder: w.folder, broker: w.broker}).types("zsh", "-f", "-i")
		shell.press("mkdir f && brokerctl completion zsh >f/_brokerctl && fpath=(f $fpath) && autoload -U compinit && compinit -u -D && echo re''ady\n", "ready\r\n")
		shell.press("brokerctl service insp\tcom.ex\t\n", `name +`+echo)
	})
	t.Run("fish", func(t *testing.T) {
		needsShell(t, "fish")
		w := &world{T: t, folder: w.folder, broker: w.broker}
		for line, want := range map[string]string{
			"brokerctl service st":                    "start stop",
			"brokerctl service inspect com.ex":        echo,
			"brokerctl session inspect " + s.ID()[:8]: s.ID(),
			"brokerctl session list --state=cl":       "--state=closed",
			"brokerctl completion ":                   "bash fish zsh",
		} {
			// On a loaded machine names may not be there in the time that they have.
			w.until(line+" is completed to "+want, func() bool { return w.fish(line) == want })
		}
	})
}

// needsShell skips a test where a shell is not installed. CI installs all three.
func needsShell(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil && os.Getenv("CI") == "" {
		t.Skipf("%s is not installed", name)
	}
}

// fish returns the words that fish completes a line's last word to, by name.
func (w *world) fish(line string) string {
	w.Helper()
	folder := w.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexport %s=brokerctl GORACE=atexit_sleep_ms=0\nexec /proc/%d/exe \"$@\"\n", roleVariable, os.Getpid())
	w.must(os.WriteFile(filepath.Join(folder, "brokerctl"), []byte(script), 0o755))
	cmd := exec.CommandContext(w.Context(), "fish", "--no-config", "-c", "brokerctl completion fish | source; complete -C '"+line+"'")
	cmd.Env = []string{"PATH=" + folder + ":/bin:/usr/bin", "HOME=" + folder, "FAIRLEAD_SOCKET=" + w.broker.Socket}
	said, err := cmd.CombinedOutput()
	w.must(err)
	var words []string
	for line := range strings.Lines(string(said)) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}
