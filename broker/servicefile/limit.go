package servicefile

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
)

// Unlimited is a limit that is none: RLIM_INFINITY of setrlimit(2).
const Unlimited uint64 = unix.RLIM_INFINITY

// A Limit is a soft and a hard resource limit of setrlimit(2), in the resource's own unit. Either may be Unlimited.
type Limit struct{ Soft, Hard uint64 }

// String returns the limit as a service file has it: "1024", "unlimited" or "1024:4096".
func (l Limit) String() string {
	if l.Soft == l.Hard {
		return amount(l.Soft)
	}
	return amount(l.Soft) + ":" + amount(l.Hard)
}

func amount(n uint64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// resources are those of setrlimit(2) that Linux enforces: locks and rss have had no effect since 2.4.
var resources = map[string]int{
	"as":         unix.RLIMIT_AS,         // bytes
	"core":       unix.RLIMIT_CORE,       // bytes
	"cpu":        unix.RLIMIT_CPU,        // seconds
	"data":       unix.RLIMIT_DATA,       // bytes
	"fsize":      unix.RLIMIT_FSIZE,      // bytes
	"memlock":    unix.RLIMIT_MEMLOCK,    // bytes
	"msgqueue":   unix.RLIMIT_MSGQUEUE,   // bytes
	"nice":       unix.RLIMIT_NICE,       // 20 less the nice value
	"nofile":     unix.RLIMIT_NOFILE,     // descriptors
	"nproc":      unix.RLIMIT_NPROC,      // threads of the user
	"rtprio":     unix.RLIMIT_RTPRIO,     // priority
	"rttime":     unix.RLIMIT_RTTIME,     // microseconds
	"sigpending": unix.RLIMIT_SIGPENDING, // signals
	"stack":      unix.RLIMIT_STACK,      // bytes
}

// Resource returns the number that setrlimit(2) has for a resource of Service.Limits, and whether there is one of that name: as, core, cpu, data, fsize,
// memlock, msgqueue, nice, nofile, nproc, rtprio, rttime, sigpending or stack.
func Resource(name string) (number int, ok bool) {
	number, ok = resources[name]
	return number, ok
}

// parseLimit reads "N", "unlimited" or "SOFT:HARD" of these.
func parseLimit(text string) (Limit, error) {
	soft, hard, both := strings.Cut(text, ":")
	if !both {
		hard = soft
	}
	var l Limit
	for i, part := range []string{soft, hard} {
		n, err := strconv.ParseUint(part, 10, 64)
		if part == "unlimited" {
			n, err = Unlimited, nil
		} else if err != nil || n == Unlimited {
			return Limit{}, fmt.Errorf(`%s: want a number from 0 on, "unlimited" or "SOFT:HARD"`, strictfile.Quote(text))
		}
		*[]*uint64{&l.Soft, &l.Hard}[i] = n
	}
	return l, nil
}
