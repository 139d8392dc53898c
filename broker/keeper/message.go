package keeper

import (
	"bytes"
	"encoding/gob"
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// The starter gives the keeper one order, as a file in memory that both the keeper and the program's second stage read. The keeper answers with reports over
// a socketpair of packets, and never waits for the starter to take them. Both are in gob.

// An order is a Config without its files.
type order struct {
	Program, Environment []string
	Dir                  string
	Credential           *syscall.Credential
	Umask                uint32
	Nice                 int
	Limits               []Limit
	Stdout, Stderr       Output
	Log, Cgroup          string
	MaxLog               int64
	Files                int // how many the program inherits
}

func orderOf(c Config) order {
	return order{
		Program: c.Program, Environment: c.Environment, Dir: c.Dir, Credential: c.Credential, Umask: c.Umask, Nice: c.Nice, Limits: c.Limits,
		Stdout: c.Stdout, Stderr: c.Stderr, Log: c.Log, Cgroup: c.Cgroup, MaxLog: maxLog, Files: len(c.Files),
	}
}

// file returns a file in memory that holds the order.
func (o order) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("fairlead-keeper", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("fairlead-keeper", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "order")
	if err := gob.NewEncoder(f).Encode(o); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readOrder reads an order from its beginning, whatever was read of it before. The descriptor stays open.
func readOrder(fd int) (o order, err error) {
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return order{}, err
	}
	b := make([]byte, file.Size)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return order{}, err
	}
	err = gob.NewDecoder(bytes.NewReader(b[:n])).Decode(&o)
	return o, err
}

// A report is what the keeper tells its starter: reportForked, reportExecuted and then reportEnded. A reportFailed comes instead of any
// of the first two, and is the last.
type report struct {
	Kind reportKind
	// Program is for reportForked, which comes with the program's pidfd.
	Program process.ID
	// Step, Path and Errno are for reportFailed, see StartError.
	Step, Path string
	Errno      syscall.Errno
	// Status and Stderr are for reportEnded, see Outcome.
	Status syscall.WaitStatus
	Stderr []string
}

type reportKind int

const (
	reportForked reportKind = iota + 1
	reportExecuted
	reportFailed
	reportEnded
)

// maxReport bounds a report, in bytes: the last lines of stderr are the most of it.
const maxReport = 32 << 10

func failed(step, path string, err error) report {
	return report{Kind: reportFailed, Step: step, Path: path, Errno: errnoOf(err)}
}

func (r report) encode() []byte {
	var b bytes.Buffer
	_ = gob.NewEncoder(&b).Encode(r) // of plain values into memory
	return b.Bytes()
}

// receive takes the next report from the keeper, and the descriptor that came with it, if one did. The error is io.EOF when the keeper is gone.
func receive(conn *os.File) (r report, file *os.File, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return report{}, nil, err
	}
	b, rights := make([]byte, maxReport), make([]byte, unix.CmsgSpace(4))
	var n, rightsLen int
	readErr := raw.Read(func(fd uintptr) bool {
		for {
			n, rightsLen, _, _, err = unix.Recvmsg(int(fd), b, rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if err := errors.Join(readErr, err); err != nil {
		return report{}, nil, err
	}
	if rightsLen > 0 {
		file = fileOf(rights[:rightsLen])
	}
	if n == 0 {
		err = io.EOF
	} else {
		err = gob.NewDecoder(bytes.NewReader(b[:n])).Decode(&r)
	}
	if err != nil && file != nil {
		file.Close()
	}
	return r, file, err
}

// fileOf returns the one descriptor of a control message.
func fileOf(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "pidfd")
}

func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EIO
}
