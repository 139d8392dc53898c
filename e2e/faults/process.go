package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A proc is a living process of the machine, as /proc shows it.
type proc struct {
	PID, Parent int
	Kind        string
	Service     string // of an instance
	Args        []string
}

func (p proc) String() string {
	return fmt.Sprintf("%s %d %q, parent %d", p.Kind, p.PID, p.Args, p.Parent)
}

// The kinds of processes that faults do not hit themselves.
const (
	execStage  = "stage of a start"
	forked     = "forked process"
	witnesses  = "witness"
	residents  = "resident"
	hostiles   = "hostile process"
	commandRun = "unknown"
)

// processes returns all processes of the machine but this one: those that execute its programs. One that has exited, and was not waited for, is none.
func (m *machine) processes() []proc {
	self, _ := os.Executable()
	var all []proc
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		if err != nil || exe != self && filepath.Dir(exe) != m.Programs {
			continue
		}
		text, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if len(text) == 0 || exe == self && !strings.Contains(string(text), string(m.place)) { // another machine's
			continue
		}
		p := proc{PID: pid, Parent: parentOf(pid), Args: strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")}
		if p.Kind = kindOf(filepath.Base(exe), p.Args); p.Kind == instance || p.Kind == stranger {
			p.Service = p.Args[1]
		}
		if slices.Contains(ours, p.Kind) && p.Parent != os.Getpid() {
			p.Kind = forked
		}
		all = append(all, p)
	}
	return all
}

// ours are the kinds of processes whose parent is this one. Another that looks like them is a child of theirs, which has not executed its program yet.
var ours = []string{brokerd, crowd, runtimes, stranger, hostiles}

// kindOf returns what a process is by what it executes.
func kindOf(program string, args []string) string {
	second := ""
	if len(args) > 1 {
		second = args[1]
	}
	switch {
	case args[0] == "fairlead-keeper":
		return keeper
	case args[0] == "fairlead-exec":
		return execStage
	case args[0] == "fairlead-init":
		return initial
	case program == "brokerd" && second == "serve":
		return brokerd
	case program == "brokerd" && second == "network":
		return network
	case program == "broker-run":
		return runtimes
	case args[0] == "worker":
		return stranger
	case args[0] == "crowd":
		return crowd
	case args[0] == "witness":
		return witnesses
	case args[0] == "hostile":
		return hostiles
	case slices.Contains(Services, second):
		return instance
	case len(args) == 3:
		return residents
	}
	return commandRun
}

// parentOf returns the number of a process's parent; 0: it is gone.
func parentOf(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, _ := strconv.Atoi(strings.TrimSpace(rest))
			return parent
		}
	}
	return 0
}

// of returns those of a kind.
func of(all []proc, kind string) []proc {
	return slices.DeleteFunc(slices.Clone(all), func(p proc) bool { return p.Kind != kind })
}
