package socket

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

// SystemPath is where the system's broker has its socket.
const SystemPath = "/run/fairlead/broker.sock"

// Variable is the environment variable that names the broker's socket.
const Variable = "FAIRLEAD_SOCKET"

// maxPath is the longest path of a Unix socket in bytes, see unix(7).
const maxPath = 107

// Path returns the absolute path of the broker's socket: explicit if that is not empty, else what FAIRLEAD_SOCKET says, else SystemPath for root, else UserPath.
func Path(explicit string) (string, error) {
	path := explicit
	if path == "" {
		path = os.Getenv(Variable)
	}
	switch {
	case path != "":
	case os.Geteuid() == 0:
		path = SystemPath
	default:
		return UserPath()
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find the broker's socket: %w", err)
	}
	return path, CheckPath(path)
}

// UserPath returns where the broker of this user has its socket: in $XDG_RUNTIME_DIR, or else in a folder of the user's own under the temp folder.
func UserPath() (string, error) {
	folder := os.Getenv("XDG_RUNTIME_DIR")
	if filepath.IsAbs(folder) { // the XDG base directory specification has a relative one ignored
		folder = filepath.Join(folder, "fairlead")
	} else {
		folder = filepath.Join(os.TempDir(), fmt.Sprintf("fairlead-%d", os.Geteuid()))
	}
	path := filepath.Join(folder, "broker.sock")
	return path, CheckPath(path)
}

// CheckPath checks that a socket can have this path.
func CheckPath(path string) error {
	if len(path) > maxPath {
		return wire.Errorf(wire.Malformed, "socket path of %d bytes: %s: a Unix socket's has at most %d, choose a shorter one", len(path), path, maxPath)
	}
	return nil
}

// CheckFolder checks that nobody but this user and root can replace what is in a folder: it is a folder and no link, belongs to either, and is not writable
// for others unless it is sticky, as /tmp is. A folder that is not there is no error. It fails with wire.NotPermitted.
func CheckFolder(folder string) error { return checkFolder(folder, false, true) }

// CheckPrivate checks that nobody but this user and root can put anything into a folder. It fails with wire.NotPermitted.
func CheckPrivate(folder string) error { return checkFolder(folder, false, false) }

func checkFolder(folder string, anybodys, sticky bool) error {
	info, err := os.Lstat(folder)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check a folder: %w", err)
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	owned := stat != nil && (stat.Uid == 0 || isOwn(folder, stat.Uid) || anybodys)
	private := info.Mode().Perm()&0o022 == 0 || sticky && info.Mode()&os.ModeSticky != 0
	if !info.IsDir() || !owned || !private {
		return wire.Errorf(wire.NotPermitted, "folder %s has mode %v and %s: want a folder of this user's or root's that others cannot write", folder, info.Mode(), owner(stat))
	}
	return nil
}

// isOwn reports whether a folder whose owner shows as uid is this user's. A uid that may be that of any user whom this process's user namespace does not map proves
// nothing: then the kernel is asked by O_NOATIME, which is for a file's owner, see open(2).
func isOwn(folder string, uid uint32) bool {
	if int(uid) != os.Geteuid() || !process.UnmappedUser(uid) {
		return int(uid) == os.Geteuid()
	}
	fd, err := unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

func owner(stat *syscall.Stat_t) string {
	if stat == nil {
		return "an unknown owner"
	}
	return fmt.Sprintf("belongs to uid %d", stat.Uid)
}

// CloseOnExec marks a descriptor that was inherited, so that children of this process do not get it too.
func CloseOnExec(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return fmt.Errorf("take over inherited descriptor %d: %w", fd, err)
	}
	return nil
}
