package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Handle holds on to one process by a pidfd, see pidfd_open(2). It stays with that process after its death, and
// never means a later one with the same number. All methods may be called at any time by any goroutine,
// also after Close.
type Handle struct {
	file *os.File
	raw  syscall.RawConn
	pid  int
}

// Open returns a handle on the process that has the number pid now. The caller must know that
// this is the one it means: because it is a child not yet waited for, or else by OpenID.
// The error wraps ErrGone if no process has the number.
func Open(pid int) (*Handle, error) {
	fd, err := pidfdOpen(pid)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return newHandle(os.NewFile(uintptr(fd), "pidfd"), pid)
}

// OpenID returns a handle on the process that id names, and no other.
// The error wraps ErrGone if the process is no more. One that has exited but was not waited for is opened, and Gone.
func OpenID(id ID) (*Handle, error) {
	h, err := Open(id.PID)
	if err != nil {
		return nil, err
	}
	now, err := Identify(id.PID)
	if err == nil && now != id {
		err = fmt.Errorf("open process %d: %w: the number is another's now", id.PID, ErrGone)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// ErrNotPidfd says that a descriptor is something else than the pidfd of a whole process.
var ErrNotPidfd = errors.New("the descriptor is not the pidfd of a process")

// FromFile returns a handle on the process whose pidfd is in file, as it was received from another process.
// Anything else is refused, so that nothing can pass for a process that never ends: the error wraps ErrNotPidfd and says what it is.
// The handle owns file from then on; with an error it stays the caller's.
func FromFile(file *os.File) (*Handle, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("take a pidfd: %w", err)
	}
	var pid int
	ctlErr := raw.Control(func(fd uintptr) {
		unix.CloseOnExec(int(fd))
		pid, err = inspectPidfd(int(fd))
	})
	if err := errors.Join(ctlErr, err); err != nil {
		return nil, fmt.Errorf("take a pidfd: %w", err)
	}
	return newHandle(file, pid)
}

func newHandle(file *os.File, pid int) (*Handle, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &Handle{file: file, raw: raw, pid: pid}, nil
}

// PID returns the number of the process, for display and for /proc.
// It is 0 where it is not known: the process is in a foreign pid namespace, or was gone when its pidfd was received.
func (h *Handle) PID() int { return h.pid }

// Gone reports whether the process has exited, by the kernel's word at this moment.
// A closed handle knows nothing and answers false.
func (h *Handle) Gone() bool {
	gone, err := h.poll()
	return gone && err == nil
}

// check returns nil if the process is there, so that its number is its own. Else the error wraps ErrGone or os.ErrClosed.
func (h *Handle) check() error {
	gone, err := h.poll()
	if gone {
		return ErrGone
	}
	return err
}

// poll asks without waiting. A pidfd is readable once the last thread of its process has exited.
func (h *Handle) poll() (gone bool, err error) {
	ctlErr := h.control(func(fd uintptr) {
		gone, err = pollNow(int(fd), unix.POLLIN)
	})
	return gone, errors.Join(ctlErr, err)
}

// control runs f with the pidfd, which cannot be closed meanwhile. The error is os.ErrClosed, after Close.
func (h *Handle) control(f func(fd uintptr)) error {
	if h.raw.Control(f) != nil {
		return os.ErrClosed
	}
	return nil
}

// Signal sends sig to the process. The error wraps ErrGone if it was waited for already; a signal to one that has
// exited and was not waited for does nothing.
func (h *Handle) Signal(sig syscall.Signal) error {
	var err error
	ctlErr := h.control(func(fd uintptr) {
		err = unix.PidfdSendSignal(int(fd), sig, nil, 0)
	})
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err := errors.Join(ctlErr, err); err != nil {
		return fmt.Errorf("send %v to process %d: %w", sig, h.pid, err)
	}
	return nil
}

// SyscallConn gives access to the pidfd, for polling it and for sending it to another process. Only Control works.
// The error is always nil.
func (h *Handle) SyscallConn() (syscall.RawConn, error) { return h.raw, nil }

// File returns a copy of the pidfd. The caller closes it.
func (h *Handle) File() (*os.File, error) {
	var fd int
	var err error
	ctlErr := h.control(func(own uintptr) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(ctlErr, err); err != nil {
		return nil, fmt.Errorf("copy the pidfd of process %d: %w", h.pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Close lets go of the process, which is not touched. Only the first call does anything.
func (h *Handle) Close() error {
	if h == nil {
		return nil
	}
	if err := h.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the pidfd of process %d: %w", h.pid, err)
	}
	return nil
}

// pidfdOpen returns a close-on-exec pidfd. The error is ErrGone if no process has the number.
func pidfdOpen(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	return fd, err
}

// maxInfo is more than the fdinfo of a pidfd has, in bytes: some 100, and 11 for each pid namespace.
const maxInfo = 4 << 10

// inspectPidfd returns the number of the process that fd is the pidfd of, or 0 if it has none here.
func inspectPidfd(fd int) (int, error) {
	// The kernel tells pidfds from all else, but for a /proc/PID folder, which takes signals too. It is asked first: the fdinfo of other kinds may be
	// long, and in that of an io_uring its maker writes names of files.
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); errors.Is(err, unix.EBADF) {
		return 0, notPidfd(fd)
	}
	// A pidfd of one thread has this flag (PIDFD_THREAD is O_EXCL, since Linux 6.9).
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, err
	}
	if flags&unix.O_EXCL != 0 {
		return 0, fmt.Errorf("%w but that of a thread", ErrNotPidfd)
	}
	info, err := readBounded("/proc/self/fdinfo/"+strconv.Itoa(fd), maxInfo)
	if err != nil {
		return 0, err
	}
	// Of the two only a pidfd has this line, see proc_pid_fdinfo(5).
	_, rest, found := bytes.Cut(info, []byte("\nPid:"))
	if !found {
		return 0, notPidfd(fd)
	}
	number, _, _ := bytes.Cut(rest, []byte("\n"))
	pid, err := strconv.Atoi(string(bytes.TrimSpace(number)))
	if err != nil {
		return 0, fmt.Errorf("malformed fdinfo: %w", err)
	}
	return max(pid, 0), nil // -1 stands for a process that was waited for
}

// notPidfd says what fd is instead, by its link in /proc, see proc_pid_fd(5). Nothing is asked of fd itself, which need not answer in time, and no
// path is told.
func notPidfd(fd int) error {
	link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return ErrNotPidfd
	}
	kind, rest, _ := strings.Cut(link, ":")
	switch {
	case strings.HasPrefix(link, "/"):
		kind = "file or folder"
	case kind == "anon_inode":
		kind = strings.Trim(rest, "[]")
	case slices.Contains(namespaces, kind):
		kind += " namespace"
	}
	return fmt.Errorf("%w: its kind is %s", ErrNotPidfd, kind)
}

// namespaces are the kinds of links to them, see namespaces(7).
var namespaces = []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}

// pollNow reports whether one of events, a hang-up or an error is there on fd now.
func pollNow(fd int, events int16) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}
