package strictfile

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Load returns the content of a file of at most so many KiB, or the rule that it breaks as a file. /dev/null has none. Nothing but a regular file is opened: a
// FIFO would block, and a device may act on it. The file must be one that Distrust has nothing against.
func Load(path string, most int) (content []byte, rule string) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, Reason(err)
	}
	if isNull(info) {
		return nil, ""
	}
	if !info.Mode().IsRegular() {
		return nil, "is no regular file"
	}
	f, err := os.OpenFile(path, unix.O_NONBLOCK|unix.O_NOCTTY, 0) // it may have become something else
	if err != nil {
		return nil, Reason(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, Reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, "is no regular file"
	}
	if rule := Distrust(info); rule != "" {
		return nil, rule
	}
	content, err = io.ReadAll(io.LimitReader(f, int64(most)<<10+1))
	if err != nil {
		return nil, Reason(err)
	}
	if len(content) > most<<10 {
		return nil, fmt.Sprintf("is larger than %d KiB", most)
	}
	return content, ""
}

// isNull reports whether info is of /dev/null, by its number: devices.txt of the kernel.
func isNull(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&os.ModeCharDevice != 0 && uint64(stat.Rdev) == unix.Mkdev(1, 3)
}

// Distrust returns why what a file or a folder says must not be done: it is another's than root's or this user's, or others may write it. Empty: it may be.
func Distrust(info os.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch self := os.Geteuid(); {
	case !ok:
		return "has no owner that is known"
	case stat.Uid != 0 && int(stat.Uid) != self && self == 0:
		return fmt.Sprintf("belongs to uid %d: want root's", stat.Uid)
	case stat.Uid != 0 && int(stat.Uid) != self:
		return fmt.Sprintf("belongs to uid %d: want root's or that of this user, uid %d", stat.Uid, self)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Sprintf("may be written by others than its owner (mode %04o): run chmod go-w on it", info.Mode().Perm())
	}
	return ""
}
