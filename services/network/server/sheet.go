package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

const (
	// sheetStep is by how many bytes a record grows: some 40 leases. What is not written yet is zeros.
	sheetStep = 16 << 10
	// sheetWindow is how many bytes of a file are mapped at a time, if what is stored at once is not longer.
	sheetWindow = 256 << 10
)

// A sheet is a file that is written by storing into memory, see mmap(2): what was stored is in the file, whatever becomes of this process, as after write(2), and
// costs no system call. Room is made by writing zeros before, so that a full disk is an error and no SIGBUS.
type sheet struct {
	file   *os.File // for reading and writing
	path   string   // at which the next instance looks for it
	is     inode    // what it is
	room   int64    // bytes that it has at least, unless somebody has cut it
	memory []byte   // a part of the file, or of what it may become
	from   int64    // where that part begins
}

// An inode is what a file is, whatever it is called.
type inode struct{ device, number uint64 }

// errLost is why nothing can be stored: somebody has removed, moved, replaced or cut the file, or the disk fails.
var errLost = errors.New("the file is lost")

// openSheet opens a file, or makes it if the flags say so.
func openSheet(path string, flags int) (*sheet, error) {
	file, err := openRegular(path, flags|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	is, size, err := look(int(file.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &sheet{file: file, path: path, is: is, room: size}, nil
}

// look says what a file is and how long, see statx(2).
func look(folder int, path string, flags int) (is inode, size int64, err error) {
	var st unix.Statx_t
	err = unix.Statx(folder, path, flags, unix.STATX_INO|unix.STATX_SIZE, &st)
	return inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, int64(st.Size), os.NewSyscallError("statx", err)
}

// close lets the file go.
func (s *sheet) close() error {
	return errors.Join(s.unmap(), s.file.Close())
}

func (s *sheet) unmap() error {
	memory := s.memory
	s.memory = nil
	if memory == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(memory))
}

// check fails with errLost where another file, or none, is at the path, or it is shorter than it was made.
func (s *sheet) check() error {
	switch is, size, err := look(unix.AT_FDCWD, s.path, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is not there", errLost, s.path)
	case err != nil:
		return err
	case is != s.is || size < s.room:
		return fmt.Errorf("%w: %s is another one, or has %d bytes of %d", errLost, s.path, size, s.room)
	}
	return nil
}

// grow makes the file at least so many bytes long. If that fails it has what it had, and perhaps more zeros.
func (s *sheet) grow(to int64) error {
	if to <= s.room {
		return nil
	}
	if _, err := s.file.WriteAt(make([]byte, to-s.room), s.room); err != nil {
		return err
	}
	s.room = to
	return nil
}

// put stores text, for which there must be room, from its end to its beginning: whoever looks at the file when this process was killed meanwhile finds nothing in the
// place of its first byte, and of a number that has become larger none that is too large. It fails with errLost.
func (s *sheet) put(at int64, text []byte) (err error) {
	memory, err := s.view(at, len(text))
	if err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface {
				runtime.Error
				Addr() uintptr
			})
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%w: %v", errLost, fault)
		}
	}()
	for i := len(text) - 1; i >= 0; i-- {
		memory[i] = text[i]
	}
	return nil
}

// view returns a part of the file as memory.
func (s *sheet) view(at int64, n int) ([]byte, error) {
	if end := s.from + int64(len(s.memory)); at < s.from || at+int64(n) > end {
		if err := s.unmap(); err != nil {
			return nil, err
		}
		page := int64(os.Getpagesize())
		s.from = at - at%page
		memory, err := unix.Mmap(int(s.file.Fd()), s.from, max(sheetWindow, n+int(page)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		s.memory = memory
	}
	return s.memory[at-s.from:][:n], nil
}
