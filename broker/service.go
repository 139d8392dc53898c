package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A Service is what the broker may start.
type Service struct {
	Name      string
	Endpoints []string
	Program   []string // the arguments, first the program's path
}

// LockPath returns the lock of a service of the broker at a socket. Every instance that the broker starts inherits it locked.
func LockPath(socket, service string) string { return filepath.Join(socket+".d", service+".lock") }

// StateDir returns the folder in which a service of the broker at a socket may keep what its next instance needs.
func StateDir(socket, service string) string { return filepath.Join(socket+".d", service) }

// lockPoll is how often a held lock is tried again while an instance is waited for.
const lockPoll = 20 * time.Millisecond

// A service is a declared service. It is stopped, starting (start is set) or running (instance is set):
//
//	stopped ── get ──▶ starting ── registered ──▶ running ── unregistered ──▶ stopped
//	                      └── failed, timed out ──▶ stopped
//
// A start is an object of its own, so that the late end of an old one cannot touch a new one.
type service struct {
	Service
	b *Broker

	mu       sync.Mutex
	instance *instance
	starting *start
	children []*start // started here and not yet reaped
	stopped  bool     // for good
}

// A start is one attempt to have an instance: the broker starts a process, or waits for one that holds the service's lock.
type start struct {
	done     chan struct{} // closed when it has come to something
	instance *instance     // set before done is closed, if it succeeded
	err      error         // likewise, if it failed

	// Of a process that was started:
	number int64
	handle *process.Handle
	exited chan struct{} // closed when the process was reaped
	status string        // set before exited is closed
}

// declare enters a service.
func (b *Broker) declare(c Service) error {
	if err := wire.CheckName(c.Name); err != nil {
		return fmt.Errorf("declare a service: %w", err)
	}
	s := &service{Service: c, b: b}
	b.declared[c.Name] = s
	for _, e := range c.Endpoints {
		if owner := b.owners[e]; owner != nil || e == Endpoint {
			return wire.Errorf(wire.Conflict, "declare service %s: endpoint %s is taken", c.Name, e)
		}
		b.owners[e] = s
	}
	return nil
}

// get returns the service's instance. If there is none it starts one, and waits until ctx ends.
func (s *service) get(ctx context.Context) (*instance, error) {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil, wire.Errorf(wire.Unavailable, "the broker is being stopped")
	}
	if s.instance != nil && !s.instance.over() {
		defer s.mu.Unlock()
		return s.instance, nil
	}
	st := s.starting
	if st == nil {
		st = &start{done: make(chan struct{})}
		s.starting = st
		s.b.work.Go(func() { s.run(st) })
	}
	s.mu.Unlock()
	select {
	case <-st.done:
		return st.instance, st.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s to start: %w", s.Name, ctx.Err())
	}
}

// run brings a start to its end.
func (s *service) run(st *start) {
	ctx, cancel := context.WithTimeout(s.b.ctx, s.b.conf.StartTimeout)
	defer cancel()
	lock, err := s.acquire(ctx, st)
	if err != nil {
		s.finish(st, nil, err)
		return
	}
	if lock == nil {
		return // one that lived already has registered
	}
	select {
	case <-st.done: // likewise, and without the lock
		lock.Close()
		return
	default:
	}
	err = s.spawn(st, lock)
	lock.Close()
	if err != nil {
		s.finish(st, nil, wire.Errorf(wire.StartFailed, "start %s: %v", s.Name, err))
		return
	}
	select {
	case <-st.done:
	case <-st.exited:
		s.finish(st, nil, wire.Errorf(wire.StartFailed, "%s ended before it registered: %s; its log says why", s.Name, st.status))
	case <-ctx.Done():
		s.finish(st, nil, wire.Errorf(wire.StartTimeout, "%s (pid %d) has not registered within %v", s.Name, st.handle.PID(), s.b.conf.StartTimeout))
		s.kill(st.number, st.handle)
	}
}

// acquire takes the service's lock. While an instance holds it, that one is waited for: then there is a registration and no lock.
func (s *service) acquire(ctx context.Context, st *start) (*os.File, error) {
	path := LockPath(s.b.conf.Socket, s.Name)
	for {
		lock, err := Lock(path)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, wire.Conflict) {
			return nil, wire.Errorf(wire.StartFailed, "%v", err)
		}
		select {
		case <-st.done:
			return nil, nil
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, wire.Errorf(wire.StartTimeout, "an instance of %s lives%s, for it holds %s, and has not registered within %v", s.Name, s.lastAlive(), path, s.b.conf.StartTimeout)
		}
	}
}

// lastAlive names the process of the last instance, if it is known and lives.
func (s *service) lastAlive() string {
	if r, err := s.last(); err == nil && r.Process.Alive() {
		return fmt.Sprintf(" (pid %d)", r.Process.PID)
	}
	return ""
}

// spawn starts a process with its control connection and the lock, and has it reaped.
func (s *service) spawn(st *start, lock *os.File) error {
	number, err := s.next()
	if err != nil {
		return err
	}
	st.number = number
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	pidfd := -1
	cmd := exec.Command(s.Program[0], s.Program[1:]...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &pidfd, Setpgid: true}
	cmd.Env = append(os.Environ(), services.ControlVariable+"=3", services.LockVariable+"=4",
		services.InstanceVariable+"="+strconv.FormatInt(st.number, 10), socket.Variable+"="+s.b.conf.Socket)
	st.exited = make(chan struct{})
	if err := cmd.Start(); err != nil {
		ours.Close()
		return err
	}
	if st.handle, err = handleOf(cmd, pidfd); err != nil { // not known to happen: it was just started
		cmd.Process.Kill()
		cmd.Wait()
		ours.Close()
		return err
	}
	s.mu.Lock()
	stopped := s.stopped
	s.children = append(s.children, st)
	s.mu.Unlock()
	if stopped { // stop may not have seen it
		st.handle.Signal(syscall.SIGKILL)
	}
	s.rememberProcess(st.number, cmd.Process.Pid) // not reaped yet, so the pid is still its own
	s.b.log.Info("instance started", "service", s.Name, "instance", st.number, "peer", cmd.Process.Pid)
	s.b.work.Go(func() { s.reap(st, cmd) })
	s.b.work.Go(func() { s.converse(st, ours, cmd.Process.Pid) })
	return nil
}

func handleOf(cmd *exec.Cmd, pidfd int) (*process.Handle, error) {
	if pidfd < 0 { // before Linux 5.4
		return process.Open(cmd.Process.Pid)
	}
	return ownHandle(os.NewFile(uintptr(pidfd), "pidfd"))
}

// ownHandle returns a handle that owns the pidfd in f, which is closed if it is none.
func ownHandle(f *os.File) (*process.Handle, error) {
	h, err := process.FromFile(f)
	if err != nil {
		f.Close()
	}
	return h, err
}

// socketpair returns a connected pair: one end for the broker, the other for an instance to inherit.
func socketpair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a control connection: %w", err)
	}
	own := os.NewFile(uintptr(fds[0]), "control")
	defer own.Close()
	theirs = os.NewFile(uintptr(fds[1]), "control")
	if ours, err = socket.FromFile(own); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// reap waits for a process that was started. Its handle is of no use afterwards.
func (s *service) reap(st *start, cmd *exec.Cmd) {
	cmd.Wait()
	st.status = cmd.ProcessState.String()
	close(st.exited)
	st.handle.Close()
	s.mu.Lock()
	s.children = slices.DeleteFunc(s.children, func(c *start) bool { return c == st })
	stopped := s.stopped
	s.mu.Unlock()
	if !stopped && !cmd.ProcessState.Success() {
		s.b.log.Warn("instance ended", "service", s.Name, "instance", st.number, "peer", cmd.Process.Pid, "status", st.status)
	}
}

// converse reads the registration of a process that was started, and keeps its control connection.
func (s *service) converse(st *start, conn *net.UnixConn, pid int) {
	conn.SetDeadline(time.Now().Add(s.b.conf.StartTimeout))
	stop := context.AfterFunc(s.b.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) }) // a child of its own may keep the connection open
	f, files, err := socket.ReadFrame(conn)
	stop()
	socket.Discard(files)
	if err == nil && f.Kind != wire.KindRegister {
		err = wire.Errorf(wire.Malformed, "the first frame is a %v: want register", f.Kind)
	}
	if err != nil {
		s.b.refuse(conn, err)
		return
	}
	handle, err := copyHandle(st.handle)
	if err != nil {
		s.b.refuse(conn, err) // it is gone
		return
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	s.b.register(conn, party{Process: wire.Process{PID: pid, UID: uid, GID: gid, Program: handle.Program()}, handle: handle}, f.Body, st)
}

// copyHandle returns a handle on the same process, which its taker closes.
func copyHandle(of *process.Handle) (*process.Handle, error) {
	f, err := of.File()
	if err != nil {
		return nil, err
	}
	return ownHandle(f)
}

// registered notes the service's instance. One that no start of this broker knows was there before: it is asked whether it runs as it is declared.
func (s *service) registered(i *instance, st *start) {
	s.mu.Lock()
	s.instance = i
	waiting := s.starting
	s.mu.Unlock()
	if waiting != nil {
		s.finish(waiting, i, nil)
	}
	if st != nil || i.number == 0 { // started by this broker, or by hand
		return
	}
	s.b.log.Info("instance taken up", "service", s.Name, "instance", i.number, "peer", i.process.PID)
	args, err := i.handle.Arguments()
	if err == nil && len(args) > 0 && !slices.Equal(args[1:], s.Program[1:]) {
		s.b.log.Warn(fmt.Sprintf("service runs with other arguments than this broker's: they apply when it is started next; to apply them now, which ends its sessions, run 'kill %d'", i.process.PID),
			"service", s.Name, "instance", i.number, "peer", i.process.PID, "runs", strings.Join(args[1:], " "), "wanted", strings.Join(s.Program[1:], " "))
	}
}

// unregistered notes that the instance takes no more sessions.
func (s *service) unregistered(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instance == i {
		s.instance = nil
	}
}

// finish ends a start, once.
func (s *service) finish(st *start, i *instance, err error) {
	s.mu.Lock()
	first := s.starting == st
	if first {
		s.starting = nil
		st.instance, st.err = i, err
		close(st.done)
	}
	s.mu.Unlock()
	if first && err != nil {
		s.b.log.Error("start failed", "service", s.Name, "instance", st.number, "code", wire.CodeOf(err), "err", err)
	}
}

// stop ends the service's instance, and every process that this broker has started: it asks them to stop, and kills what has not in time. An instance
// that was started by hand is left alone.
func (s *service) stop() {
	s.mu.Lock()
	s.stopped = true
	children, i := slices.Clone(s.children), s.instance
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	if i != nil && i.number != 0 {
		s.stopInstance(ctx, i)
	}
	for _, st := range children {
		st.handle.Signal(syscall.SIGTERM) // one that was asked is gone, or its control connection is
		select {
		case <-st.exited:
		case <-ctx.Done():
			select {
			case <-st.exited:
			default:
				s.kill(st.number, st.handle)
				<-st.exited
			}
		}
	}
}

// stopInstance asks a registered instance to stop, and returns when its process is gone. It holds on to that by itself: the registration lets go when the
// control connection is lost.
func (s *service) stopInstance(ctx context.Context, i *instance) {
	h, err := copyHandle(i.handle)
	if err != nil {
		return // it was let go just now
	}
	defer h.Close()
	gone, unwatch := s.b.watchProcess(h)
	defer unwatch()
	if err := i.control.Call(ctx, wire.MethodStop, nil, nil); err != nil {
		h.Signal(syscall.SIGTERM)
	}
	select {
	case <-gone:
	case <-ctx.Done():
		s.kill(i.number, h)
		<-gone
	}
	s.b.log.Info("instance stopped", "service", s.Name, "instance", i.number, "peer", i.process.PID)
}

func (s *service) kill(number int64, h *process.Handle) {
	s.b.log.Warn("instance is killed: it did not do what it was to in time", "service", s.Name, "instance", number, "peer", h.PID())
	if err := h.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, process.ErrGone) && !errors.Is(err, os.ErrClosed) {
		s.b.log.Error("cannot kill an instance", "service", s.Name, "instance", number, "peer", h.PID(), "err", err)
	}
}
