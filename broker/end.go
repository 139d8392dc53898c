package broker

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// late ends a program that has not registered in time, and says so. One that has served before may have sessions still: it is stopped in order, and who waits for it is told
// at once. Nothing is done about one that has registered just now, or is to stop anyhow.
func (l *life) late() error {
	l.s.mu.Lock()
	if l.instance != nil || l.stopping {
		l.s.mu.Unlock()
		return nil
	}
	err := wire.Errorf(wire.StartTimeout, "%s (%v) runs, and has not registered within %v", l.s.name, l, l.def.StartTimeout)
	served := l.served
	l.askLocked()
	if served {
		l.s.failLocked(err)
	}
	l.s.mu.Unlock()
	l.s.b.log.Warn("instance is ended: it has not registered in time", "service", l.s.name, "instance", l.number, "peer", l.pid())
	if served {
		l.end()
	} else {
		l.keeper.Kill()
	}
	return err
}

// gone waits until all processes of a program that has ended, or is being killed, are gone, and tells the service. A failure is why it was killed; nil: it is
// judged by how it has ended.
func (l *life) gone(failure error) {
	<-l.keeper.Ended()
	out := l.keeper.Outcome()
	l.s.b.counters.exit(l.s.name, howEnded(out))
	opening := l.s.b.table.firstOpening(l.s.name)
	close(l.ending)
	l.s.mu.Lock()
	served, adopted, latest, wanted := l.served, l.adopted, l.latest, l.stopping
	l.s.mu.Unlock()
	exit := Exit{Instance: l.number, At: wire.At(time.Now()), Status: out.String(), Stderr: out.Stderr}
	if out.Known && out.Signal != 0 {
		exit.Signal = out.Signal.String()
	}
	clean := out.Known && out.Signal == 0 && out.Code == 0
	if failure != nil {
		exit.Why = wire.AsError(failure).Text
	}
	switch {
	case failure != nil && !served:
		failure = wire.Errorf(wire.CodeOf(failure), "%s%s", wire.AsError(failure).Text, quoted(out.Stderr))
	case failure != nil, wanted:
	case adopted && !served && out.Signal == syscall.SIGKILL: // its broker had not done starting it when that died
	case !served:
		exit.Unregistered = true
		failure = wire.Errorf(wire.StartFailed, "%s ended before it registered: %v%s", l.s.name, out, quoted(out.Stderr))
	case out.Known && !clean:
		failure = wire.Errorf(wire.StartFailed, "%s (instance %d) ended: %v%s", l.s.name, l.number, out, quoted(out.Stderr))
	case clean && time.Since(l.begun) < leastLife && !l.s.b.table.hasHeard(latest):
		l.s.mu.Lock()
		l.s.health.Vain = true
		l.s.mu.Unlock()
	}
	if failure != nil {
		if served && !errors.Is(failure, wire.Hung) { // else it has seen no open, or did not end by one
			l.s.crashed(opening)
		}
		l.s.b.log.Warn("instance ended", "service", l.s.name, "instance", l.number, "peer", l.pid(), "status", out.String(), "code", wire.CodeOf(failure))
	} else if !wanted {
		l.s.b.log.Info("instance ended", "service", l.s.name, "instance", l.number, "peer", l.pid(), "status", out.String())
	}
	if failure != nil && !served { // those who wait need not wait for what the program leaves behind
		l.s.mu.Lock()
		l.s.failLocked(failure)
		l.s.settleLocked(l, failure)
		l.s.mu.Unlock()
	}
	l.cleared()
	l.s.ended(l, exit, failure)
}

// cleared returns when the last process is gone.
func (l *life) cleared() {
	kill := time.NewTimer(l.def.StopTimeout)
	defer kill.Stop()
	for {
		select {
		case <-l.keeper.Gone():
			return
		case <-kill.C:
			l.keeper.Kill()
			kill.Reset(time.Second)
		}
	}
}

// quoted puts the last lines of a program's stderr behind what is said of its end.
func quoted(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	const (
		most     = 600 // bytes: the whole error has wire.MaxText
		mostLine = 200 // so that one long line, as a stack, leaves room for others
	)
	short := make([]string, len(lines))
	for i, l := range lines {
		if short[i] = wire.Cut(l, mostLine); len(short[i]) < len(l) {
			short[i] += "…"
		}
	}
	text := strings.Join(short, " | ")
	if len(text) > most {
		text = "… " + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return "; the last it wrote on stderr: " + wire.Printable(text, wire.MaxText)
}

// end stops the program: it is told over its control connection, so that it answers what is in flight, then by SIGTERM, and killed with all that it has started
// when its time is over.
func (l *life) end() {
	deadline := time.NewTimer(l.def.StopTimeout)
	defer deadline.Stop()
	if l.drain(l.def.StopTimeout / 2) { // then it is about to end by itself
		select {
		case <-l.keeper.Ended():
		case <-time.After(l.def.StopTimeout / 4):
		}
	}
	l.keeper.Terminate() // fails where it is gone
	select {
	case <-l.keeper.Ended():
	case <-deadline.C:
		l.killed()
		<-l.keeper.Ended()
	}
	l.s.b.log.Info("instance stopped", "service", l.s.name, "instance", l.number, "peer", l.pid(), "status", l.keeper.Outcome().String())
}

// drain tells a registered instance to stop, and reports whether it has given up its control connection, which it does when it has drained its sessions.
func (l *life) drain(patience time.Duration) bool {
	l.s.mu.Lock()
	i := l.instance
	l.s.mu.Unlock()
	if i == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := i.control.Call(ctx, wire.MethodStop, nil, nil); err != nil && !i.over() {
		return false
	}
	select {
	case <-i.control.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// killed kills a program that has not stopped in time, and says which sessions that cuts off.
func (l *life) killed() {
	open := l.s.b.table.open(l.s.name, 10)
	l.s.b.log.Warn("instance did not stop in time and is killed", "service", l.s.name, "instance", l.number, "peer", l.pid(), "sessions", open)
	l.keeper.Kill()
}
