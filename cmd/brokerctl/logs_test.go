package main_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
)

// talker is a service that writes, and goes on with each SIGUSR1.
const talker = "com.example.talker"

func talking(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, map[string]string{"talker": shell(talker, `n=0; say() { n=$((n+1)); echo "turn $n"; }; trap say USR1; printf 'one\n\033[31mtwo\n'; printf 'three\n' >&2; while :; do sleep 0.02; done`, `start_timeout = "1h"`)})
	w.ctl("service start " + talker + " --timeout 50ms")
	w.until("all is written", func() bool { return strings.Contains(w.ctl("service logs "+talker).out, "three\n") })
	return w
}

// talk has the talker write one more line.
func (w *world) talk() {
	w.Helper()
	w.must(syscall.Kill(int(w.details("service inspect " + talker)["pid"].(float64)), syscall.SIGUSR1))
}

func TestLogsArePrintedAsTheyAreWritten(t *testing.T) {
	w := talking(t)
	for line, want := range map[string]string{
		"":           "one\n\x1b[31mtwo\nthree\n",
		" -n 2":      "\x1b[31mtwo\nthree\n",
		" --lines=1": "three\n",
	} {
		if got := w.done("service logs " + talker + line); got != want {
			t.Errorf("logs%s: %q, want %q", line, got, want)
		}
	}
}

// A followed is brokerctl following a log, as a process of its own.
type followed struct {
	cmd *exec.Cmd
	out *bufio.Reader
	end io.Closer // of the reader
}

// follow has brokerctl follow the talker's log; its output is a pipe.
func (w *world) follow(words ...string) followed {
	w.Helper()
	return w.followed(w.program(append([]string{"service", "logs", "-f", talker}, words...)...))
}

// followed starts a process whose output is a pipe.
func (w *world) followed(cmd *exec.Cmd) followed {
	w.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	w.must(err, cmd.Start())
	w.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return followed{cmd, bufio.NewReader(out), out}
}

// line waits for a line.
func (f followed) line(w *world) string {
	w.Helper()
	late := time.AfterFunc(patience, func() { f.cmd.Process.Kill() })
	defer late.Stop()
	line, err := f.out.ReadString('\n')
	w.must(err)
	return line
}

// exits waits until it has ended by itself, with exit code 0.
func (f followed) exits(w *world) {
	w.Helper()
	late := time.AfterFunc(patience, func() { f.cmd.Process.Kill() })
	defer late.Stop()
	if err := f.cmd.Wait(); err != nil {
		w.Errorf("it ends with %v", err)
	}
}

func TestALogIsFollowedBeyondTheTimeoutUntilInterrupted(t *testing.T) {
	w := talking(t)
	f := w.follow("-n", "1", "--timeout", "300ms")
	if line := f.line(w); line != "three\n" {
		t.Fatalf("%q", line)
	}
	begun := time.Now()
	for n := 1; n <= 3 || time.Since(begun) < 500*time.Millisecond; n++ {
		w.talk()
		if line, want := f.line(w), fmt.Sprintf("turn %d\n", n); line != want {
			t.Fatalf("%q, want %q", line, want)
		}
	}
	w.must(f.cmd.Process.Signal(os.Interrupt))
	f.exits(w)
}

func TestALogThatNobodyReadsAnyMoreIsNotFollowed(t *testing.T) {
	w := talking(t)
	f := w.follow()
	f.line(w)
	w.must(f.end.Close()) // and nothing more is written
	f.exits(w)
}

func TestOnATerminalALogCannotSteerIt(t *testing.T) {
	w := talking(t)
	master, slave := terminal(t)
	cmd := w.program("service", "logs", talker)
	cmd.Stdout = slave
	w.must(cmd.Run(), slave.Close())
	master.SetReadDeadline(time.Now().Add(patience))
	said, err := io.ReadAll(master)
	if got, want := string(said), "one\r\n\\x1b[31mtwo\r\nthree\r\n"; got != want { // the terminal makes the carriage returns
		t.Errorf("%q (%v), want %q", got, err, want)
	}
}

// terminal returns both ends of a terminal, see pty(7).
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestWhatIsShownOnATerminalIsEscapedWhereverItIsCut(t *testing.T) {
	for text, want := range map[string]string{
		"plain\n\ttext\n":          "plain\n\ttext\n",
		"é 世界 😀":                   "é 世界 😀",
		"\x1b]0;title\a":           `\x1b]0;title\a`,
		"\r\x00\x7f":               `\r\x00\x7f`,
		"c1: \u009b31m":            `c1: \u009b31m`,
		"raw \x9b31m":              `raw \x9b31m`,
		"right to left \u202e txt": `right to left \u202e txt`,
		"cut \xe4\xb8":             `cut \xe4\xb8`,
		"\xf0\x9f\x98\n":           `\xf0\x9f\x98` + "\n",
	} {
		for at := range len(text) + 1 {
			var b strings.Builder
			if err := brokerctl.Escape(&b, []byte(text[:at]), []byte(text[at:])); err != nil || b.String() != want {
				t.Errorf("%q cut at %d: %q, %v, want %q", text, at, b.String(), err, want)
			}
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add([]byte("a\x1b[2J"), []byte("b\xe4\xb8"))
	f.Add([]byte("\xf0\x9f"), []byte("\x98\x80\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var cut, whole strings.Builder
		if err := brokerctl.Escape(&cut, a, b); err != nil {
			t.Fatal(err)
		}
		brokerctl.Escape(&whole, bytes.Join([][]byte{a, b}, nil))
		if cut.String() != whole.String() {
			t.Errorf("%q when cut, %q as a whole", cut.String(), whole.String())
		}
		if strings.ContainsFunc(cut.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
			t.Errorf("%q has a control character", cut.String())
		}
	})
}
