package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// ticks is how many clock ticks /proc counts a second: USER_HZ, which is 100 on every architecture that Go runs on; see sysconf(3).
const ticks = 100

// Started returns when the process was started, to some 10 ms, by the clock as it stands now. It is the zero time for no process and where the clock since
// boot cannot be read.
func (id ID) Started() time.Time {
	var since unix.Timespec
	if id.IsZero() || unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(id.Start)*time.Second/ticks - time.Duration(since.Nano()))
}
