package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

// allIDs is how many ids a user namespace can map: all but 4294967295, which is none, see user_namespaces(7).
const allIDs = 1<<32 - 1

// overflowID is what the kernel shows in place of an id that is not mapped, unless an administrator has changed it.
const overflowID = 65534

// UnmappedUser reports whether uid may stand for a user that this process's user namespace does not map: the kernel shows all of them as one,
// /proc/sys/kernel/overflowuid, which is nobody's number as well. Who gets such an id knows nothing of whose it is. Where the namespace maps all users, as the
// first one does, there are none.
func UnmappedUser(uid uint32) bool { return users.unmapped(uid) }

// UnmappedGroup is UnmappedUser for a group.
func UnmappedGroup(gid uint32) bool { return groups.unmapped(gid) }

// An idMap is what is known of one of this process's maps, uid_map or gid_map of /proc/self.
type idMap struct {
	kind  string      // "uid" or "gid"
	whole atomic.Bool // it has all ids, and so has for good: a map is written once, see user_namespaces(7)
}

var users, groups = &idMap{kind: "uid"}, &idMap{kind: "gid"}

// unmapped reads the map each time that it must: it can be written once after a namespace has begun. Where it is whole, which most are, nothing is read again.
func (m *idMap) unmapped(id uint32) bool {
	if m.whole.Load() {
		return false
	}
	if mapsAll("/proc/self/" + m.kind + "_map") {
		m.whole.Store(true)
		return false
	}
	return id == overflow(m.kind)
}

func overflow(kind string) uint32 {
	text, err := os.ReadFile("/proc/sys/kernel/overflow" + kind)
	if err != nil {
		return overflowID
	}
	id, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 32)
	if err != nil {
		return overflowID
	}
	return uint32(id)
}

// mapsAll reports whether a map has all ids. One that cannot be read has not.
func mapsAll(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var sum uint64
	for line := range bytes.Lines(text) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(string(line), &inside, &outside, &count); err != nil {
			return false
		}
		sum += count
	}
	return sum >= allIDs
}

// SameUser reports whether the process is of this process's user, as the kernel knows it and not as its number shows it: whether it may be signalled, see kill(2).
// It is for who has the same number, and false for a process that is gone.
func (h *Handle) SameUser() bool { return h.Signal(0) == nil }
