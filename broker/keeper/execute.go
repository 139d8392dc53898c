package keeper

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// execute is the main function of the program's second stage. It returns only if it fails, with the exit status. Its descriptors are those of the program, and
// after them the pipe to the keeper, the order, and the socket of who started the keeper.
func execute(files string) int {
	keeper := os.Getppid()
	debug.SetGCPercent(-1) // it would start threads, for which the program's limits may leave no room
	count, err := strconv.Atoi(files)
	if err != nil {
		return 1
	}
	pipe := 3 + count
	say := func(b []byte) { _, _ = unix.Write(pipe, b) }
	o, err := readOrder(pipe + 1)
	if err == nil {
		err = process.CloseOnExec(pipe)
	}
	if err != nil {
		say(append([]byte{0}, failed("read the order for its second stage", "", err).encode()...))
		return 1
	}
	if !mayRun(pipe + 2) {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // as all ends that has no keeper
	}
	for _, s := range o.steps(keeper) {
		if err := s.take(); err != nil {
			say(append([]byte{0}, failed(s.name, s.path, err).encode()...))
			return 1
		}
	}
	say([]byte{0})
	err = syscall.Exec(o.Program[0], o.Program, o.Environment)
	say(o.notExecuted(err).encode())
	return 1
}

// mayRun waits for the starter's word that the program is written down, and returns false if the starter is gone before.
func mayRun(starter int) bool {
	fds := []unix.PollFd{{Fd: int32(starter), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			n, _ := unix.Read(starter, make([]byte, 1))
			return n > 0
		}
	}
}

// A step is one thing that the second stage sets up.
type step struct {
	name, path string
	take       func() error
}

// steps returns what is to be set up, in order. What needs privileges comes before they are dropped, and the limits as late as that allows: this process must
// live with them, too.
func (o order) steps(keeper int) []step {
	steps := []step{{"make its process group", "", func() error { return unix.Setpgid(0, 0) }}}
	if o.Cgroup != "" {
		steps = append(steps, step{"join the cgroup", o.Cgroup, cgroup(o.Cgroup).join})
	}
	if o.Nice != 0 {
		steps = append(steps, step{fmt.Sprintf("set its nice value to %d", o.Nice), "", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, o.Nice) }})
	}
	steps = append(steps, step{"set its umask", "", func() error { unix.Umask(int(o.Umask)); return nil }})
	for _, l := range o.Limits {
		steps = append(steps, step{fmt.Sprintf("set the limit of resource %d to %d, %d", l.Resource, l.Soft, l.Hard), "", l.set})
	}
	if c := o.Credential; c != nil {
		steps = append(steps,
			step{"give up capabilities that a program could get back", "", func() error { return bound(c) }},
			step{fmt.Sprintf("become user %d with group %d", c.Uid, c.Gid), "", func() error { return become(c) }},
			step{"give up new privileges", "", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }})
	}
	// A change of credentials clears the death signal, and the keeper may have died before it was set again.
	return append(steps,
		step{"ask for a death signal", "", func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }},
		step{"find its keeper alive", "", func() error { return alive(keeper) }},
		step{"change to the folder", o.dir(), func() error { return unix.Chdir(o.dir()) }})
}

func (o order) dir() string {
	if o.Dir == "" {
		return "/"
	}
	return o.Dir
}

func (l Limit) set() error {
	return unix.Prlimit(0, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil)
}

// bound empties the sets of capabilities that a change of the uid leaves as they are, see capabilities(7): the inheritable and the ambient ones, and, unless the
// program stays root, the bounding set. The last takes CAP_SETPCAP: without it, that no privileges can be gained must do.
func bound(c *syscall.Credential) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && err != unix.EINVAL { // before Linux 4.3 there are none
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	if c.Uid != 0 {
		for capability := uintptr(0); ; capability++ {
			err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
			if err == unix.EINVAL || err == unix.EPERM { // behind the last; or not allowed
				break
			} else if err != nil {
				return err
			}
		}
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	return unix.Capset(&header, &sets[0])
}

// become takes on credentials. Without the uid 0 no capability is left. Only this thread does: the others end when it executes the program, and must not count
// against that user's RLIMIT_NPROC until then.
func become(c *syscall.Credential) error {
	setgroups, setresgid, setresuid := uintptr(unix.SYS_SETGROUPS), uintptr(unix.SYS_SETRESGID), uintptr(unix.SYS_SETRESUID)
	if runtime.GOARCH == "386" || runtime.GOARCH == "arm" { // where these are for numbers of 16 bits, see setgroups32 and the like in setresuid(2)
		setgroups, setresgid, setresuid = 206, 210, 208
	}
	uid, gid := uintptr(c.Uid), uintptr(c.Gid)
	var errno syscall.Errno
	if !c.NoSetGroups {
		_, _, errno = unix.RawSyscall(setgroups, uintptr(len(c.Groups)), uintptr(unsafe.Pointer(unsafe.SliceData(c.Groups))), 0)
	}
	if errno == 0 {
		_, _, errno = unix.RawSyscall(setresgid, gid, gid, gid)
	}
	if errno == 0 {
		_, _, errno = unix.RawSyscall(setresuid, uid, uid, uid)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

func alive(keeper int) error {
	if os.Getppid() != keeper {
		return unix.ESRCH
	}
	return nil
}

// notExecuted says why execve(2) failed. Its ENOENT may mean the program or what is to interpret it.
func (o order) notExecuted(err error) report {
	program := o.Program[0]
	if _, statErr := os.Stat(program); errors.Is(err, unix.ENOENT) && statErr == nil {
		return failed("execute "+program+" by its interpreter", interpreter(program), err)
	}
	return failed("execute", program, err)
}

// maxLine bounds how much of a script's first line the kernel reads, see execve(2).
const maxLine = 255

// interpreter returns what a script's first line names, or nothing if the program is no script.
func interpreter(program string) string {
	f, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _, _ := bufio.NewReaderSize(f, maxLine).ReadLine()
	line, script := bytes.CutPrefix(line, []byte("#!"))
	words := strings.Fields(string(line))
	if !script || len(words) == 0 {
		return ""
	}
	return words[0]
}
