// Package socket is the Unix socket beneath everything: where the broker's is, who is at the other end of one, and frames on it that carry descriptors.
package socket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
)

// ReadFrame reads exactly one frame from conn, and not a byte more, with the descriptors that belong to it. They are close-on-exec and owned by
// the caller. A frame whose descriptors are not as many as it says fails with wire.Malformed, truncated ones (as at RLIMIT_NOFILE) with
// wire.OverQuota; what arrived is closed. Only one goroutine may read conn. End of file before the first byte is io.EOF, and after it
// io.ErrUnexpectedEOF.
func ReadFrame(conn *net.UnixConn) (wire.Frame, []*os.File, error) {
	receiver, err := NewReceiver(conn)
	if err != nil {
		return wire.Frame{}, nil, err
	}
	var files []*os.File
	var truncated bool
	f, err := wire.ReadFrame(func(n int) ([]byte, error) {
		b := make([]byte, n)
		got, cut, err := readFull(receiver, b)
		files, truncated = append(files, got...), truncated || cut
		return b, err
	})
	switch {
	case err != nil:
	case len(files) > int(f.Files):
		err = wire.Errorf(wire.Malformed, "read a frame: %d descriptors arrived with a %v that says %d", len(files), f.Kind, f.Files)
	case truncated:
		err = wire.Errorf(wire.OverQuota, "read a frame: %d of its %d descriptors arrived: raise the limit of open files", len(files), f.Files)
	case len(files) != int(f.Files):
		err = wire.Errorf(wire.Malformed, "read a frame: %d descriptors arrived with a %v that says %d", len(files), f.Kind, f.Files)
	}
	if err != nil {
		Discard(files)
		return f, nil, err
	}
	return f, files, nil
}

// readFull fills b and collects the descriptors that come on the way. End of file before the first byte is io.EOF.
func readFull(r *Receiver, b []byte) (files []*os.File, truncated bool, err error) {
	for at := 0; at < len(b); {
		n, got, flags, err := r.Receive(b[at:])
		files = append(files, got...)
		truncated = truncated || flags&unix.MSG_CTRUNC != 0
		at += n
		if most := wire.MaxFiles + 1; len(files) > most { // a frame can be long, and each of its bytes have descriptors; so many are too many already
			Discard(files[most:])
			files = files[:most]
		}
		switch {
		case errors.Is(err, io.EOF):
			if at == 0 {
				return files, truncated, io.EOF
			}
			return files, truncated, io.ErrUnexpectedEOF
		case err != nil:
			return files, truncated, err
		}
	}
	return files, truncated, nil
}

// An UnsentError says that the kernel did not take a frame's descriptors, so that nothing of the frame has left: as when one is closed, or too many of this
// user's are on their way (ETOOMANYREFS, unix(7)).
type UnsentError struct{ Err error }

// Error says what was refused.
func (e *UnsentError) Error() string { return "descriptors not sent: " + e.Err.Error() }

// Unwrap returns the kernel's reason.
func (e *UnsentError) Unwrap() error { return e.Err }

// WriteFrame writes f to conn with files attached to its first byte. The header's count is set from files. The caller keeps its files. Only one
// goroutine may write to conn. After an *UnsentError conn is as it was before.
func WriteFrame(conn *net.UnixConn, f wire.Frame, files ...*os.File) error {
	if len(files) > wire.MaxFiles {
		return wire.Errorf(wire.Malformed, "write a %v: %d descriptors, limit %d", f.Kind, len(files), wire.MaxFiles)
	}
	f.Files = uint8(len(files))
	b := f.Append(nil)
	if len(files) > 0 {
		n, err := writeRights(conn, b, files)
		if err != nil && !Lost(err) {
			err = &UnsentError{err}
		}
		if err != nil {
			return fmt.Errorf("write a %v with %d descriptors: %w", f.Kind, len(files), err)
		}
		b = b[n:] // what is left goes without: they have left
	}
	if len(b) == 0 {
		return nil
	}
	if _, err := conn.Write(b); err != nil {
		return fmt.Errorf("write a %v: %w", f.Kind, err)
	}
	return nil
}

// Lost reports whether a write failed because the connection is over.
func Lost(err error) bool {
	for _, over := range []error{syscall.EPIPE, syscall.ECONNRESET, net.ErrClosed, os.ErrDeadlineExceeded} {
		if errors.Is(err, over) {
			return true
		}
	}
	return false
}

// writeRights sends what it can of b, at least a byte, with files attached.
func writeRights(conn *net.UnixConn, b []byte, files []*os.File) (int, error) {
	fds := make([]int, len(files))
	return withFDs(files, fds, func() (int, error) {
		n, _, err := conn.WriteMsgUnix(b, syscall.UnixRights(fds...), nil)
		return n, err
	})
}

// withFDs calls f with fds filled from files, which cannot be closed meanwhile. It leaves their blocking mode alone, unlike File.Fd.
func withFDs(files []*os.File, fds []int, f func() (int, error)) (n int, err error) {
	if len(files) == 0 {
		return f()
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		fds[len(fds)-len(files)] = int(fd)
		n, err = withFDs(files[1:], fds, f)
	})
	if controlErr != nil {
		return 0, controlErr
	}
	return n, err
}

// Discard closes files that were received. Closing the last copy of a TCP socket waits as long as its sender has said (SO_LINGER, socket(7)), so nobody is
// asked to.
func Discard(files []*os.File) {
	for _, f := range files {
		if raw, err := f.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) }) // it may be no socket
		}
	}
	CloseFiles(files)
}

// CloseFiles closes all files.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Copy returns copies of files, close-on-exec, which the caller closes.
func Copy(files []*os.File) ([]*os.File, error) {
	var copies []*os.File
	for _, f := range files {
		raw, err := f.SyscallConn()
		fd := -1
		if err == nil {
			controlErr := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
			err = errors.Join(controlErr, err)
		}
		if err != nil {
			CloseFiles(copies)
			return nil, fmt.Errorf("copy descriptor %s: %w", f.Name(), err)
		}
		copies = append(copies, os.NewFile(uintptr(fd), f.Name()))
	}
	return copies, nil
}
