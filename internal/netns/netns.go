// Package netns tells when a network namespace is gone, without keeping it alive.
//
// The kernel numbers namespaces for each other: to this process's own network namespace another one is known by an nsid, see ip-netns(8). It keeps one until that
// namespace is gone, and then tells the rtnetlink group RTNLGRP_NSID. A number needs CAP_NET_ADMIN to be given, and no privilege to be asked for or heard of.
package netns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNot says that a descriptor is something else than a network namespace.
var ErrNot = errors.New("the descriptor is not a network namespace")

// An ID tells a network namespace from others that exist at the same time. Once it is gone another may get its ID.
type ID struct {
	Inode uint64 `json:"inode"`
	Dev   uint64 `json:"dev"`
}

// Identify returns the ID of the network namespace in file. The error wraps ErrNot for anything else.
func Identify(file syscall.Conn) (ID, error) {
	var st unix.Stat_t
	err := control(file, func(fd int) error {
		var system unix.Statfs_t
		if err := unix.Fstatfs(fd, &system); err != nil {
			return err
		}
		if system.Type != unix.NSFS_MAGIC {
			return ErrNot
		}
		if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
			return ErrNot
		}
		return unix.Fstat(fd, &st)
	})
	if err != nil {
		return ID{}, fmt.Errorf("identify a network namespace: %w", err)
	}
	return ID{Inode: st.Ino, Dev: uint64(st.Dev)}, nil
}

// OfProcess returns the ID of the network namespace that a process is in. That of a process of another user may not be read.
func OfProcess(pid int) (ID, error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st); err != nil {
		return ID{}, fmt.Errorf("identify the network namespace of process %d: %w", pid, err)
	}
	return ID{Inode: st.Ino, Dev: uint64(st.Dev)}, nil
}

// Owner returns the uid of who made the user namespace that the network namespace in file belongs to, see ioctl_nsfs(2). The error is EPERM for one that is above
// this process's.
func Owner(file syscall.Conn) (uid uint32, err error) {
	err = control(file, func(fd int) error {
		user, err := unix.IoctlRetInt(fd, unix.NS_GET_USERNS)
		if err != nil {
			return err
		}
		defer unix.Close(user)
		uid, err = unix.IoctlGetUint32(user, unix.NS_GET_OWNER_UID)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the owner of a network namespace: %w", err)
	}
	return uid, nil
}

// FirstOwn is the smallest number that Number makes. Those that the kernel gives are the smallest that are free, and so never as large.
const FirstOwn = 1 << 30

// tries is how many random numbers are tried.
const tries = 8

// Number has the kernel tell the end of the namespace in file, by the number that it returns. One that the namespace has already stays, as the kernel changes
// none; a new one is random and at least FirstOwn, so that no other namespace gets it later. The error is EPERM without CAP_NET_ADMIN.
func Number(file syscall.Conn) (nsid int32, err error) {
	err = control(file, func(fd int) error {
		for range tries {
			nsid, err = ask(unix.RTM_GETNSID, attribute(unix.NETNSA_FD, uint32(fd)))
			if err != nil || nsid >= 0 {
				return err
			}
			wanted := uint32(FirstOwn + rand.IntN(FirstOwn-1))
			_, err = ask(unix.RTM_NEWNSID, attribute(unix.NETNSA_FD, uint32(fd)), attribute(unix.NETNSA_NSID, wanted))
			if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOSPC) { // it has one by now, or somebody has this one
				return err
			}
		}
		return errors.New("it gets no number")
	})
	if err != nil {
		return 0, fmt.Errorf("number a network namespace: %w", err)
	}
	return nsid, nil
}

// Exists reports whether a namespace has the number at this moment.
func Exists(nsid int32) (bool, error) {
	_, err := ask(unix.RTM_GETNSID, attribute(unix.NETNSA_NSID, uint32(nsid)))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("ask for network namespace %d: %w", nsid, err)
	}
	return true, nil
}

// control runs f with the descriptor of file.
func control(file syscall.Conn, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	closed := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(closed, err)
}

// News tells which numbers are gone.
type News struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// Listen begins to listen. The caller closes it.
func Listen() (*News, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("listen for network namespaces: %w", os.NewSyscallError("socket", err))
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_NSID - 1)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen for network namespaces: %w", os.NewSyscallError("bind", err))
	}
	file := os.NewFile(uintptr(fd), "rtnetlink")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("listen for network namespaces: %w", err)
	}
	return &News{file: file, raw: raw, buf: make([]byte, 64<<10)}, nil
}

// Next waits for news, and returns numbers that are gone. Where some were lost because they came too fast, it returns ENOBUFS: then all are to be asked for
// with Exists. It returns os.ErrClosed after Close. One goroutine may be in Next.
func (n *News) Next() (gone []int32, err error) {
	var size int
	var from unix.Sockaddr
	waited := n.raw.Read(func(fd uintptr) bool {
		for {
			size, from, err = unix.Recvfrom(int(fd), n.buf, 0)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if waited != nil {
		return nil, os.ErrClosed
	}
	if err != nil {
		return nil, os.NewSyscallError("recvfrom", err)
	}
	if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
		return nil, nil // another process may send here, too
	}
	messages, err := syscall.ParseNetlinkMessage(n.buf[:size])
	if err != nil {
		return nil, fmt.Errorf("read the news of network namespaces: %w", err)
	}
	for _, m := range messages {
		if nsid, ok := numberIn(m.Data); ok && m.Header.Type == unix.RTM_DELNSID {
			gone = append(gone, nsid)
		}
	}
	return gone, nil
}

// Close ends Next.
func (n *News) Close() error { return n.file.Close() }
