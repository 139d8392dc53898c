package netns

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unique returns a number of the network namespace in file that no other namespace gets before the machine is started again. It is 0 before Linux 6.18, which made
// file handles of namespaces: struct nsfs_file_handle of linux/nsfs.h begins with it.
func Unique(file syscall.Conn) (unique uint64) {
	control(file, func(fd int) error {
		handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
		if err == nil && len(handle.Bytes()) >= 8 {
			unique = binary.NativeEndian.Uint64(handle.Bytes())
		}
		return err
	})
	return unique
}

// Find returns the network namespace that has a number at this moment, opened, which the caller closes at once: until then it keeps the namespace alive. It is found
// by a process that is in it, or by its mount in this process's mount namespace. It is nil where neither is: then there may be one all the same.
func Find(nsid int32) *os.File {
	seen := map[ID]bool{}
	paths, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range append(paths, mounted()...) {
		if file := openNew(path, seen); file != nil {
			if number, err := numberOf(file); err == nil && number == nsid {
				return file
			}
			file.Close()
		}
	}
	return nil
}

// openNew opens the network namespace at a path, unless it was seen, or there is none or none that this process may see.
func openNew(path string, seen map[ID]bool) *os.File {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || seen[ID{Inode: st.Ino, Dev: uint64(st.Dev)}] {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), path)
	id, err := Identify(file)
	if err != nil || seen[id] {
		file.Close()
		return nil
	}
	seen[id] = true
	return file
}

// numberOf returns the number that a namespace has: -1 if it has none.
func numberOf(file syscall.Conn) (nsid int32, err error) {
	control(file, func(fd int) error {
		nsid, err = ask(unix.RTM_GETNSID, attribute(unix.NETNSA_FD, uint32(fd)))
		return nil
	})
	return nsid, err
}

// mounted returns where network namespaces are mounted, as 'ip netns add' does: see proc_pid_mountinfo(5).
func mounted() (paths []string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[3], "net:[") {
			paths = append(paths, unescape(f[4]))
		}
	}
	return paths
}

// unescape returns a path of mountinfo as it is: space, tab, newline and backslash stand there in octal.
func unescape(path string) string {
	for _, c := range " \t\n\\" {
		path = strings.ReplaceAll(path, fmt.Sprintf("\\%03o", c), string(c))
	}
	return path
}
