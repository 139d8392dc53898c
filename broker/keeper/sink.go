package keeper

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// maxLog bounds the log, in bytes. Two more of that size are kept. Only tests change it.
var maxLog int64 = 10 << 20

const (
	// piece is what can be written to a pipe that is ready without waiting, in bytes: PIPE_BUF, see pipe(7).
	piece = 4 << 10
	// patience is how long a reader that is slow may hold the program up, before what it does not take is dropped.
	patience = 100 * time.Millisecond
)

// A sink is where output goes. Nothing that happens to it stops the program: what cannot be written is dropped, and counted.
type sink struct {
	path string // empty: fd is given, and stays
	open func(path string, flags int, mode uint32) (fd int, err error)
	mode uint32 // that the file is made with
	max  int64  // that it may grow to, in bytes; 0: any size
	fd   int    // -1: not open
	lost int64  // how many bytes were dropped since something was written last
	why  error
}

func newSink(to Output, o order) *sink {
	switch {
	case to.Path != "":
		return &sink{path: to.Path, open: openBelow, mode: 0o640, fd: -1}
	case to.Inherit:
		return &sink{fd: unix.Stderr}
	}
	return &sink{path: o.Log, open: unix.Open, mode: 0o600, max: o.MaxLog, fd: -1} // its folder is the broker's own
}

// write writes b, and before it how much was lost.
func (s *sink) write(b []byte) {
	if s.path == "" && s.fd < 0 {
		return // it is wanted nowhere
	}
	if s.lost > 0 {
		notice := fmt.Appendf(nil, "%s: %d bytes of output were lost here: %v\n", keeperName, s.lost, s.why)
		if _, err := s.append(notice); err != nil {
			s.lost, s.why = s.lost+int64(len(b)), err
			return
		}
		s.lost = 0
	}
	if left, err := s.append(b); err != nil {
		s.lost, s.why = int64(left), err
	}
}

// append writes b, and returns how much of it could not be written.
func (s *sink) append(b []byte) (left int, err error) {
	size, err := s.ready(len(b))
	for err == nil && len(b) > 0 {
		var n int
		n, err = s.some(b[:min(len(b), size)])
		b = b[n:]
	}
	if err != nil {
		s.shut()
	}
	return len(b), err
}

// some writes some of b.
func (s *sink) some(b []byte) (int, error) {
	wait := patience
	if s.lost > 0 {
		wait = 0
	}
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(fds, int(wait.Milliseconds()))
		if err == nil && n == 0 {
			err = errors.New("its reader does not read")
		}
		if err == nil {
			n, err = unix.Write(s.fd, b)
		}
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// ready opens the file if it is not open, or is no more, and makes room for n bytes. It returns how much may be written at a time.
func (s *sink) ready(n int) (size int, err error) {
	var file unix.Stat_t
	if s.fd >= 0 {
		if err := unix.Fstat(s.fd, &file); err != nil {
			return 0, err
		}
	}
	if s.path == "" {
		return sizeOf(file), nil
	}
	if s.fd >= 0 && file.Nlink == 0 { // somebody has removed it
		s.shut()
	}
	if s.fd < 0 {
		if file, err = s.begin(); err != nil {
			return 0, err
		}
	}
	if s.max > 0 && file.Size > 0 && file.Size+int64(n) > s.max {
		if file, err = s.rotate(); err != nil {
			return 0, err
		}
	}
	return sizeOf(file), nil
}

// sizeOf returns how much may be written at a time: only what is no file has to be asked before each.
func sizeOf(file unix.Stat_t) int {
	if file.Mode&unix.S_IFMT == unix.S_IFREG {
		return chunk
	}
	return piece
}

// begin opens the file.
func (s *sink) begin() (file unix.Stat_t, err error) {
	s.fd, err = s.open(s.path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, s.mode)
	if err != nil {
		s.fd = -1
		return file, err
	}
	return file, unix.Fstat(s.fd, &file)
}

// rotate makes the log the first of the old ones, and opens a new one.
func (s *sink) rotate() (unix.Stat_t, error) {
	s.shut()
	if err := unix.Rename(s.path+".1", s.path+".2"); err != nil && err != unix.ENOENT {
		return unix.Stat_t{}, err
	}
	if err := unix.Rename(s.path, s.path+".1"); err != nil && err != unix.ENOENT {
		return unix.Stat_t{}, err
	}
	return s.begin()
}

// shut closes the file, which is opened anew when there is something to write.
func (s *sink) shut() {
	if s.path != "" && s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}
