// Package stage is what end-to-end tests play on: the product's programs, built, what processes say, and what /proc shows of them.
package stage

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A Process is a living process as /proc shows it.
type Process struct {
	PID  int
	Args []string
}

func (p Process) String() string { return fmt.Sprintf("%d %q", p.PID, p.Args) }

// Named returns the living processes whose arguments or environment contain text, but not this one. One that has exited, and was not waited for, has neither.
func Named(text string) []Process {
	var found []Process
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ") // it may be another user's
		if bytes.Contains(args, []byte(text)) || bytes.Contains(environ, []byte(text)) {
			found = append(found, Process{pid, strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00")})
		}
	}
	return found
}
