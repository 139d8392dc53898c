package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
)

// start starts a command that dies with ctx. It has a process group of its own, so that a terminal's Ctrl-C ends the stage and not it.
func (s *stage) start(ctx context.Context, role ...string) (*exec.Cmd, *bufio.Scanner, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", role...)
	cmd.Args[0] = "brokerd"
	cmd.Stderr = s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return cmd, bufio.NewScanner(out), cmd.Start()
}

// startBroker starts the broker; whoever opens a session waits for it.
func (s *stage) startBroker(ctx context.Context) (err error) {
	// The folder has no service files: those of this machine are none of the demo's.
	s.broker, _, err = s.start(ctx, "serve", "--socket", s.socket, "--config-dir", s.folder, "--network", network.DefaultNetwork+"="+s.prefix,
		"--metrics", s.metrics())
	s.opened.Store(0)
	return err
}

// A runtimeProcess is a runtime that was started.
type runtimeProcess struct {
	name  string
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func (s *stage) startRuntime(ctx context.Context, name string) (*runtimeProcess, error) {
	cmd, lines, err := s.start(ctx, "demo", runtimeRole, "--socket", s.socket, "--name", name, "--contain", string(s.contain))
	if err != nil {
		return nil, err
	}
	s.opened.Add(1)
	s.leased.Add(1)
	return &runtimeProcess{name: name, cmd: cmd, lines: lines}, nil
}

// await returns when the runtime, or its container, has said the word.
func (r *runtimeProcess) await(word string) error {
	for r.lines.Scan() {
		if strings.HasPrefix(r.lines.Text(), word+" ") {
			return nil
		}
	}
	r.cmd.Wait()
	return fmt.Errorf("the runtime of %s ended (%v) before it was %s", r.name, r.cmd.ProcessState, word)
}

// kill ends the runtime with SIGKILL, and returns when it was reaped.
func (r *runtimeProcess) kill() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
}

// A container is the processes of one container.
type container []*process.Handle

func (c container) gone() bool {
	return !slices.ContainsFunc(c, func(h *process.Handle) bool { return !h.Gone() })
}

func (c container) close() {
	for _, h := range c {
		h.Close()
	}
}

// containersOf finds the container of each lease in /proc: all processes below the one that holds the lease.
func containersOf(leases []network.LeaseInfo) ([]container, error) {
	own, err := process.Open(os.Getpid())
	if err != nil {
		return nil, err
	}
	defer own.Close()
	holders := make(container, 0, len(leases))
	defer func() { holders.close() }()
	for _, l := range leases {
		h, err := process.Open(l.Holder.PID)
		if err != nil {
			return nil, fmt.Errorf("the holder of lease %s: %w", l.ID, err)
		}
		holders = append(holders, h)
	}
	found := make([]container, len(leases))
	err = eachProcess(func(h *process.Handle) (keep bool) {
		if !isBelow(h, own) { // the machine may have many others
			return false
		}
		i := slices.IndexFunc(holders, func(holder *process.Handle) bool { return isBelow(h, holder) })
		if i >= 0 {
			found[i] = append(found[i], h)
		}
		return i >= 0
	})
	return found, err
}

// isBelow reports whether h descends from ancestor. What cannot be read is not known to.
func isBelow(h, ancestor *process.Handle) bool {
	below, err := h.DescendantOf(ancestor)
	return below && err == nil
}

// networkServices returns the numbers of all processes that are the network service of the broker at a socket.
func networkServices(socket string) (pids []int, err error) {
	err = eachProcess(func(h *process.Handle) bool {
		args, err := h.Arguments()
		if err == nil && len(args) > 1 && args[1] == "network" && slices.Contains(args, socket) {
			pids = append(pids, h.PID())
		}
		return false
	})
	return pids, err
}

// eachProcess calls f for every process in /proc, and closes those that f does not keep.
func eachProcess(f func(*process.Handle) (keep bool)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		h, err := process.Open(pid)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if !f(h) {
			h.Close()
		}
	}
	return nil
}

// awaitGone waits until no process of the containers is left, and returns how long after since each container was gone, the first one first.
func awaitGone(ctx context.Context, containers []container, since time.Time) []time.Duration {
	waiting := slices.Clone(containers)
	var times []time.Duration
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(waiting) > 0 {
		waiting = slices.DeleteFunc(waiting, func(c container) bool {
			gone := c.gone()
			if gone {
				times = append(times, time.Since(since))
			}
			return gone
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return times
		}
	}
	return times
}
