package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// stopPatience is how long a process may take to end when it is asked to. A broker gives its instances their time.
const stopPatience = 30 * time.Second

// A process was started by this one, and does not outlive it.
type process struct {
	*exec.Cmd
	said  *bufio.Reader // what it writes on stdout
	out   *os.File
	ended chan struct{}
}

// start starts a program with its arguments, of which the first is its name. It is sent death when this process ends, however that does.
func start(path string, log *os.File, death syscall.Signal, args ...string) (*process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// A process group of its own: a terminal's ^C is for this process, which ends the others.
	cmd := &exec.Cmd{Path: path, Args: args, Stdout: in, Stderr: log, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: death, Setpgid: true}}
	p := &process{Cmd: cmd, said: bufio.NewReader(out), out: out, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal belongs to the thread that forks, which must not end before the process
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		in.Close()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its status is in ProcessState
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		out.Close()
		return nil, err
	}
	return p, nil
}

// role starts this program in one of its roles.
func role(log *os.File, args ...string) (*process, error) {
	return start("/proc/self/exe", log, syscall.SIGKILL, append([]string{roleName}, args...)...)
}

// await returns the rest of the next line that the process says, which begins with the word. "failed CODE TEXT" is an error, and so is its end.
func (p *process) await(word string) (string, error) {
	line, err := p.said.ReadString('\n')
	name := filepath.Base(p.Args[0])
	if err != nil {
		p.stop()
		return "", fmt.Errorf("%s ended before it was %s: %v%s", name, word, p.ProcessState, p.complaint())
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch first {
	case word:
		return rest, nil
	case failed:
		code, text, _ := strings.Cut(rest, " ")
		return "", wire.Errorf(wire.Code(code), "%s", text)
	}
	return "", fmt.Errorf("%s says %q, want %s", name, line, word)
}

// complaint returns the last line of the log of all processes, for an error.
func (p *process) complaint() string {
	log, ok := p.Stderr.(*os.File)
	if !ok {
		return ""
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return ""
	}
	text = text[max(0, len(text)-4096):]
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ": " + wire.Printable(last, 1024)
	}
	return ""
}

// stop ends the process, and returns when it has ended.
func (p *process) stop() {
	_ = p.Process.Signal(syscall.SIGTERM) // one that has ended needs none
	select {
	case <-p.ended:
	case <-time.After(stopPatience):
	}
	p.kill()
}

// kill ends the process with SIGKILL, and returns when it was waited for.
func (p *process) kill() {
	_ = p.Process.Kill()
	<-p.ended
	p.out.Close()
}

// A body is what /proc says of a process: bytes of anonymous memory, and open descriptors.
type body struct{ memory, descriptors int64 }

func bodyOf(pid int) (b body, err error) {
	folder := fmt.Sprintf("/proc/%d/", pid)
	status, err := os.ReadFile(folder + "status")
	if err != nil {
		return b, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return b, fmt.Errorf("read %sstatus: %w", folder, err)
			}
			b.memory = n << 10
		}
	}
	open, err := os.ReadDir(folder + "fd")
	b.descriptors = int64(len(open))
	return b, err
}

// cpuOf returns what a process has used of the processors, by the 14th and 15th field of /proc/PID/stat, see proc_pid_stat(5): in ticks of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // from the third on: the second may hold blanks
	var ticks int64
	for _, i := range []int{14, 15} {
		if len(fields) <= i-3 {
			return 0, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
		}
		n, err := strconv.ParseInt(fields[i-3], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
