package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Where an output goes is said by whoever wrote the service file, and the keeper may be root. So each folder on the way there must be root's or this user's, and closed to
// others unless it is sticky: whoever else could write one could have the keeper write anywhere. Links are not followed, whoever made them.

// openBelow opens a file with openat(2) below folders that it has checked. If one is not as it must be the error is a *StartError that names it.
func openBelow(path string, flags int, mode uint32) (fd int, err error) {
	folder, err := enter(filepath.Dir(path))
	if err != nil {
		return -1, err
	}
	defer unix.Close(folder)
	return unix.Openat(folder, filepath.Base(path), flags, mode)
}

// checkOutputs fails as openBelow would. What is not there may still come.
func checkOutputs(all ...Output) error {
	for _, to := range all {
		if to.Path == "" {
			continue
		}
		folder, err := enter(filepath.Dir(to.Path))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		unix.Close(folder)
	}
	return nil
}

// enter opens a folder, and checks it and all above it.
func enter(path string) (fd int, err error) {
	at := "/"
	fd, err = unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if err == nil {
			err = checkOpen(fd, at)
		}
		if err != nil || name == "" {
			break
		}
		above := fd
		at = filepath.Join(at, name)
		fd, err = unix.Openat(above, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(above)
	}
	if err == nil {
		err = checkOpen(fd, at)
	}
	if _, told := errors.AsType[*StartError](err); err != nil && !told {
		err = &StartError{Step: "send its output through the folder", Path: at, Errno: errnoOf(err)}
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// checkOpen checks a folder that is open at a path.
func checkOpen(fd int, path string) error {
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return err
	}
	switch {
	case file.Mode&unix.S_IFMT == unix.S_IFLNK:
		return &StartError{Step: "send its output through the link", Path: path, Errno: unix.ELOOP}
	case file.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	case file.Uid != 0 && int(file.Uid) != os.Geteuid():
		return &StartError{Step: fmt.Sprintf("send its output through what is uid %d's, the folder", file.Uid), Path: path, Errno: unix.EPERM}
	case file.Mode&0o022 != 0 && file.Mode&unix.S_ISVTX == 0:
		return &StartError{Step: "send its output through what others may write, the folder", Path: path, Errno: unix.EPERM}
	}
	return nil
}
