package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// spawn has a keeper execute the program, with its control connection and the lock, and reads its registration in the background.
func (l *life) spawn(ctx context.Context, lock *os.File) error {
	failed := func(err error) error { return startFailed(fmt.Errorf("start %s: %w", l.s.name, err)) }
	account, err := l.def.Account()
	if err != nil {
		return failed(err)
	}
	number, err := l.s.nextNumber()
	if err != nil {
		return failed(err)
	}
	l.s.mu.Lock()
	l.number = number
	l.s.mu.Unlock()
	ours, theirs, err := socketpair()
	if err != nil {
		return failed(err)
	}
	defer theirs.Close()
	k, err := keeper.Start(ctx, l.settings(account, theirs, lock))
	if err != nil {
		ours.Close()
		if errors.Is(err, context.DeadlineExceeded) {
			return wire.Errorf(wire.StartTimeout, "start %s: its program was not executed within %v", l.s.name, l.def.StartTimeout)
		}
		return failed(err)
	}
	l.s.mu.Lock()
	l.keeper = k
	cause := l.s.cause
	l.s.mu.Unlock()
	l.s.b.events.add(Event{Kind: EventInstanceStarted, Service: l.s.name, Instance: number, PID: l.pid(), Cause: &cause})
	l.s.b.log.Info("instance started", "service", l.s.name, "instance", l.number, "peer", l.pid())
	l.s.b.work.Go(func() { l.converse(ours, account) })
	return nil
}

// startFailed is why a start has failed. That the broker has no descriptor left for it is no fault of the service, and the start is put off.
func startFailed(err error) error {
	if scarcity(err) {
		return scarce(err)
	}
	return wire.Errorf(wire.StartFailed, "%v", err)
}

// settings returns what a keeper is told of the program.
func (l *life) settings(a servicefile.Account, control, lock *os.File) keeper.Config {
	c := keeper.Config{
		Program: l.def.Program, Environment: l.environment(a), Dir: cmp.Or(l.def.WorkingDirectory, "/"), Umask: l.def.Umask, Nice: l.def.Nice,
		Stdout: output(l.def.Stdout), Stderr: output(l.def.Stderr), Log: LogPath(l.s.b.conf.Socket, l.s.name), Cgroup: l.s.b.cgroup(l.s.name, l.number),
		Files: []*os.File{control, lock}, Hold: []*os.File{lock},
		Recorded: func(r keeper.Record) error { return l.s.keep(r, ofStart(l.def)) },
	}
	for _, name := range slices.Sorted(maps.Keys(l.def.Limits)) {
		number, _ := servicefile.Resource(name) // the file's reader knows it
		c.Limits = append(c.Limits, keeper.Limit{Resource: number, Soft: l.def.Limits[name].Soft, Hard: l.def.Limits[name].Hard})
	}
	if l.def.User != "" || l.def.Group != "" {
		c.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
	}
	return c
}

// output says where a stream of a program goes.
func output(text string) keeper.Output {
	if text == servicefile.Inherit {
		return keeper.Output{Inherit: true}
	}
	return keeper.Output{Path: text}
}

// passedOn are the variables of the broker's own environment that its services get, too.
var passedOn = []string{"LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "TMPDIR", "FAIRLEAD_LANE", "FAIRLEAD_TRACE"}

// standardPath is where a service finds programs, unless its file says otherwise.
const standardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns the program's environment: who it is, what the broker passes on, what the service file adds, and how to reach the broker.
func (l *life) environment(a servicefile.Account) []string {
	env := map[string]string{"PATH": standardPath, "HOME": a.Home, "USER": a.Name, "LOGNAME": a.Name, "SHELL": a.Shell}
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" }) // of a user who is in no list
	own := passedOn
	if int(a.UID) == os.Geteuid() {
		own = append(slices.Clone(own), "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")
	}
	for _, name := range own {
		if value := os.Getenv(name); value != "" {
			env[name] = value
		}
	}
	maps.Copy(env, l.def.Environment)
	maps.Copy(env, map[string]string{
		services.ControlVariable: "3", services.LockVariable: "4", services.InstanceVariable: strconv.FormatInt(l.number, 10), socket.Variable: l.s.b.conf.Socket,
	})
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
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

// converse reads the registration of a program that was started, and keeps its control connection.
func (l *life) converse(conn *net.UnixConn, a servicefile.Account) {
	conn.SetDeadline(time.Now().Add(l.def.StartTimeout))
	stop := context.AfterFunc(l.s.b.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) }) // a child of its own may keep the connection open
	f, files, err := socket.ReadFrame(conn)
	stop()
	socket.Discard(files)
	if err == nil && f.Kind != wire.KindRegister {
		err = wire.Errorf(wire.Malformed, "the first frame is a %v: want register", f.Kind)
	}
	var handle *process.Handle
	if err == nil {
		handle, err = copyHandle(l.keeper.Program())
	}
	if err != nil {
		l.s.b.refuse(conn, scarce(err))
		return
	}
	p := party{Process: wire.Process{PID: l.pid(), UID: a.UID, GID: a.GID, Program: handle.Program()}, groups: a.Groups, handle: handle}
	l.s.b.register(conn, p, f.Body, l)
}

// copyHandle returns a handle on the same process, which its taker closes.
func copyHandle(of *process.Handle) (*process.Handle, error) {
	f, err := of.File()
	if err != nil {
		return nil, err
	}
	h, err := process.FromFile(f)
	if err != nil {
		f.Close()
	}
	return h, err
}

// adopt takes up what an earlier broker has started and what lives. What cannot be taken up for want of descriptors is tried again, for as long as an instance may
// take to start; nobody else registers the service meanwhile, and opens wait.
func (s *service) adopt() {
	err := s.recall()
	if err != nil && !scarcity(err) {
		s.b.log.Error("cannot take up what an earlier broker has started", "service", s.name, "err", err)
		return
	}
	s.mu.Lock()
	if s.life != nil || err == nil && s.kept == (keeper.Record{}) { // an open was quicker: its start waits for the lock, and so for what lives
		s.mu.Unlock()
		return
	}
	l := s.newLifeLocked(s.cause)
	l.locked, l.adopted = true, true
	s.mu.Unlock()
	if err == nil {
		err = l.takeUp()
	}
	if !scarcity(err) && err != nil {
		s.gone(l, err)
		return
	}
	s.b.work.Go(func() {
		for last := time.Now().Add(l.def.StartTimeout); scarcity(err) && time.Now().Before(last); {
			select {
			case <-time.After(scarcePause):
			case <-s.b.ctx.Done():
				return
			}
			err = l.takeUp()
		}
		if err != nil {
			s.gone(l, err)
			return
		}
		defer l.keeper.Close()
		l.attend()
	})
}

// takeUp finds the keeper and the program that are written down.
func (l *life) takeUp() error {
	s := l.s
	if err := s.recall(); err != nil {
		return err
	}
	s.mu.Lock()
	l.number, l.begun, l.served = s.number, s.health.LastStart, s.served
	if s.keptBy.Name != "" {
		l.def = s.keptBy
	}
	kept := s.kept
	s.mu.Unlock()
	if kept == (keeper.Record{}) {
		return errNothing
	}
	k, err := keeper.Adopt(kept)
	if err != nil {
		return err
	}
	s.mu.Lock()
	l.keeper = k
	s.mu.Unlock()
	return nil
}

// errNothing says that an earlier broker has left no instance.
var errNothing = errors.New("there is no instance of an earlier broker")

// gone notes that an instance of an earlier broker cannot be taken up, as it has ended while there was no broker.
func (s *service) gone(l *life, err error) {
	ended := errors.Is(err, process.ErrGone)
	if !ended && !errors.Is(err, errNothing) {
		s.b.log.Error("cannot take an instance up", "service", s.name, "instance", l.number, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended {
		s.last = Exit{Instance: s.number, Status: unknown}
		s.kept = keeper.Record{}
	}
	s.settleLocked(l, wire.Errorf(wire.Terminating, "%s has ended before it registered", s.name))
	close(l.over)
	s.life = nil
	s.rescheduleLocked(false)
	s.changedLocked()
}

// takenUp says that an instance of an earlier broker has registered with this one.
func (l *life) takenUp() {
	s := l.s
	s.mu.Lock()
	i, pending, wanted := l.instance, s.pendingLocked(), s.def.Program
	s.mu.Unlock()
	if !l.adopted || i == nil {
		return
	}
	s.b.log.Info("instance taken up", "service", s.name, "instance", i.number, "peer", i.process.PID)
	if pending == PendingChange {
		s.b.log.Warn(fmt.Sprintf("instance runs otherwise than this broker would start it: 'brokerctl service restart %s' applies that, and ends its sessions", s.name),
			"service", s.name, "instance", i.number, "peer", i.process.PID, "runs", strings.Join(l.def.Program, " "), "wanted", strings.Join(wanted, " "))
	}
}
