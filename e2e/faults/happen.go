package faults

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	leases "github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// The operator's commands.
const (
	reload  = "service reload"
	restart = "service restart"
	halt    = "service stop"
	launch  = "service start"
	reset   = "service reset"
	closing = "session close"
	leave   = "shutdown --leave-instances"
)

// happen has the faults of a round happen, and returns when all are over.
func (m *machine) happen(r Round) {
	begun := time.Now()
	var lasting sync.WaitGroup
	ctx, cancel := context.WithCancel(m.ctx)
	lasting.Go(func() { m.mend(ctx) })
	for _, f := range r.Faults {
		if m.Length > 0 && f.At > m.Length {
			break
		}
		select {
		case <-time.After(time.Until(begun.Add(f.At))):
		case <-m.ctx.Done():
		}
		switch f.Kind {
		case kill:
			m.kill(f)
		case flood:
			lasting.Go(func() { m.flood(f) })
		case command:
			lasting.Go(func() { m.command(f) })
		default:
			lasting.Go(func() { m.last(f) })
		}
	}
	cancel()
	lasting.Wait()
}

// mend is an operator who forgives: services that are killed so often would be suspended for most of the time.
func (m *machine) mend(ctx context.Context) {
	for ctx.Err() == nil {
		soon, cancel := context.WithTimeout(ctx, time.Second)
		m.resetAll(soon) // among faults it may fail
		cancel()
		m.pause(200 * time.Millisecond)
	}
}

// hit returns a handle on the process that a fault hits, and marks an actor as ended by the machine if that is what it does. Nil: there is none.
func (m *machine) hit(f Fault) *process.Handle {
	p, ok := rank(of(m.processes(), f.Target), f.Rank)
	if !ok {
		return nil
	}
	h, err := process.Open(p.PID)
	if err != nil {
		return nil
	}
	if parentOf(p.PID) != p.Parent { // its number may be another's by now
		h.Close()
		return nil
	}
	if f.Kind == kill {
		for _, a := range append(m.everyActor(), m.broker) {
			if a.pid() == p.PID {
				a.mean()
			}
		}
	}
	return h
}

func (m *machine) kill(f Fault) {
	h := m.hit(f)
	defer h.Close()
	if h != nil && !h.Gone() && h.Signal(syscall.SIGKILL) == nil {
		m.report.hit(f)
	}
}

// last stops, delays or starves a process for a time.
func (m *machine) last(f Fault) {
	h := m.hit(f)
	if h == nil {
		return
	}
	defer h.Close()
	switch f.Kind {
	case stop:
		if h.Signal(syscall.SIGSTOP) == nil {
			m.report.hit(f)
			m.pause(f.For)
			h.Signal(syscall.SIGCONT)
		}
	case delay:
		m.report.hit(f)
		for until := time.Now().Add(f.For); time.Now().Before(until) && h.Signal(syscall.SIGSTOP) == nil; {
			m.pause(9 * time.Millisecond)
			h.Signal(syscall.SIGCONT)
			m.pause(time.Millisecond)
		}
	case starve:
		m.starve(f, h)
	}
}

func (m *machine) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-m.ctx.Done():
	}
}

// starve leaves a process only a few more descriptors than it has, for a time.
func (m *machine) starve(f Fault, h *process.Handle) {
	var before unix.Rlimit
	open := countDescriptors(strconv.Itoa(h.PID()))
	if open < 0 || m.young(h.PID()) || unix.Prlimit(h.PID(), unix.RLIMIT_NOFILE, nil, &before) != nil {
		return
	}
	few := unix.Rlimit{Cur: uint64(open + f.Size), Max: before.Max}
	if h.Gone() || unix.Prlimit(h.PID(), unix.RLIMIT_NOFILE, &few, nil) != nil {
		return
	}
	m.report.hit(f)
	m.pause(f.For)
	if !h.Gone() {
		before.Cur = before.Max // as the Go runtime has it; what it was before may be another fault's
		unix.Prlimit(h.PID(), unix.RLIMIT_NOFILE, &before, nil)
	}
}

// young reports whether a process has begun less than a second before. One that starts has nobody to refuse, and may end for want of descriptors.
func (m *machine) young(pid int) bool {
	id, err := process.Identify(pid)
	var now unix.Timespec
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	}
	const ticks = 100 // a second, of proc_pid_stat(5), for programs of every machine that Go runs on
	return err != nil || time.Duration(now.Nano())-time.Duration(id.Start)*time.Second/ticks < time.Second
}

// flood has a hostile process connect.
func (m *machine) flood(f Fault) {
	cmd := m.play("hostile", m.socket(), f.Target, strconv.Itoa(f.Size), f.For.String(), strconv.FormatUint(f.Seed, 10))
	cmd.Env = append(append(os.Environ(), "GORACE="+m.gorace()), cmd.Env...)
	if err := run(cmd); err != nil {
		m.found(finding(machineFault, "a hostile process: %v", err))
		return
	}
	m.report.hit(f)
}

func run(cmd *exec.Cmd) error {
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// command does what an operator does. What is refused, or not answered in time, is no finding: it comes among faults.
func (m *machine) command(f Fault) {
	ctx, cancel := context.WithTimeout(m.ctx, 5*time.Second)
	defer cancel()
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{Socket: m.socket(), Title: "operator"})
	if err != nil {
		m.report.commanded(f.Target, err)
		return
	}
	defer s.Close()
	name, _ := rank(append([]string{leases.Endpoint}, Services...), f.Size)
	switch f.Target {
	case reload:
		if err = m.writeFiles(); err == nil {
			err = s.Call(ctx, broker.MethodReload, nil, nil)
		}
	case leave:
		m.broker.mean()
		err = s.Call(ctx, broker.MethodShutdown, broker.ShutdownRequest{Leave: true}, nil)
	case closing:
		err = m.closeOne(ctx, s, f)
	default:
		method := map[string]string{restart: broker.MethodRestart, halt: broker.MethodStop, launch: broker.MethodStart, reset: broker.MethodReset}[f.Target]
		err = s.Call(ctx, method, broker.ServiceRequest{Name: name}, nil)
	}
	m.report.commanded(f.Target, err)
}

// closeOne closes a session of a service of the workers. One that holds a lease would free an address whose user has not been told yet.
func (m *machine) closeOne(ctx context.Context, s *client.Session, f Fault) error {
	name, _ := rank(Services, f.Size)
	list, err := brokertest.Sessions(ctx, s, broker.SessionsRequest{Endpoint: name})
	if err != nil {
		return err
	}
	one, ok := rank(list, f.Rank)
	if !ok {
		return wire.NotFound
	}
	return s.Call(ctx, broker.MethodClose, broker.SessionRequest{ID: one.ID, Text: "a fault"}, nil)
}

// release has all that is stopped go on. Every fault undoes itself; this is for what was cut short.
func (m *machine) release() {
	for _, p := range m.processes() {
		syscall.Kill(p.PID, syscall.SIGCONT)
	}
}
