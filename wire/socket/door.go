package socket

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Door returns the path of the socket for one user alone beside a broker's: who connects there waits behind nobody else's connections. A broker makes it for a user whom it has let in, and
// removes it when it is stopped. At it everything is as at the broker's.
func Door(path string, uid uint32) string {
	return filepath.Join(path+".users", strconv.FormatUint(uint64(uid), 10))
}

// ownDoor returns where this process connects to the broker at a path: at the socket for its user, if there is one in a folder that nobody else could have made. The uid is the one that
// the process has in its own user namespace: where the broker knows it by another, its user may not connect to the socket of that name, or it is not there.
func ownDoor(path string) string {
	door := Door(path, uint32(os.Geteuid()))
	var stat unix.Stat_t
	if len(door) > maxPath || unix.Lstat(door, &stat) != nil {
		return path
	}
	// Root may look at anybody's broker. But beside a socket in /tmp that is not the broker's doing: anybody can have made the folder before it.
	anybodys := os.Geteuid() == 0 && checkFolder(filepath.Dir(path), true, false) == nil
	if checkFolder(filepath.Dir(door), anybodys, false) != nil {
		return path
	}
	return door
}
