package runner_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/runner"
)

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// lines returns the lines of r as they come.
func lines(r io.Reader) <-chan string {
	all := make(chan string, 100)
	go func() {
		defer close(all)
		for s := bufio.NewScanner(r); s.Scan(); {
			all <- s.Text()
		}
	}()
	return all
}

// signalsRunner starts a runner program whose command prints its signals.
func signalsRunner(t *testing.T, attr *syscall.SysProcAttr, stdin *os.File) (*os.Process, <-chan string) {
	t.Helper()
	cmd := exec.Command(executable(t), executable(t))
	cmd.Env = append(cmd.Environ(), roleVar+"=runner", "FAIRLEAD_TEST_INNER_ROLE=signals")
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	printed := lines(out)
	t.Cleanup(func() {
		cmd.Process.Kill()
		for range printed {
		}
		cmd.Wait()
	})
	if got := wait(t, "the command", printed); got != "ready" {
		t.Fatalf("the command says %q", got)
	}
	return cmd.Process, printed
}

func expect(t *testing.T, printed <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := wait(t, w, printed); got != w {
			t.Fatalf("the command got %q, want %q", got, w)
		}
	}
}

func TestForwardPassesSignalsOn(t *testing.T) {
	process, printed := signalsRunner(t, &syscall.SysProcAttr{Setsid: true}, nil)
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGWINCH, unix.SIGUSR2} {
		if err := process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		expect(t, printed, unix.SignalName(sig))
	}
	if _, more := <-printed; more {
		t.Error("the command got more signals than were sent")
	}
}

func TestForwardDoesNotRepeatWhatTheTerminalSent(t *testing.T) {
	master, slave := terminal(t)
	process, printed := signalsRunner(t, &syscall.SysProcAttr{Setsid: true, Setctty: true}, slave)
	for _, key := range []struct {
		text string
		want string
	}{{"\x03", "SIGINT"}, {"\x1c", "SIGQUIT"}} {
		if _, err := master.WriteString(key.text); err != nil {
			t.Fatal(err)
		}
		expect(t, printed, key.want)
		process.Signal(unix.SIGUSR1)
		expect(t, printed, "SIGUSR1")
	}
	process.Signal(unix.SIGTERM)
	process.Signal(unix.SIGUSR2)
	var rest []string
	for line := range printed {
		rest = append(rest, line)
	}
	// Two signals that are pending together have no order.
	if got := strings.Join(rest, " "); got != "SIGTERM SIGUSR2" && got != "SIGUSR2" && got != "SIGUSR2 SIGTERM" {
		t.Errorf("the command got %v", rest)
	}
}

// terminal returns both ends of a new pseudo-terminal, see pty(7).
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals:", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals:", err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func TestForwardEndsWithItsChannelAndWithTheContainer(t *testing.T) {
	for name, end := range map[string]func(*runner.Container, chan os.Signal){
		"channel":   func(_ *runner.Container, signals chan os.Signal) { close(signals) },
		"container": func(c *runner.Container, _ chan os.Signal) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := prepare(t, exec.Command("/bin/sleep", "1000"), runner.Options{})
			start(t, t.Context(), c)
			signals := make(chan os.Signal)
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				c.Forward(signals)
			}()
			signals <- unix.SIGURG
			end(c, signals)
			wait(t, "the return of Forward", returned)
		})
	}
}
