package broker

import (
	"cmp"
	"time"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

// stateLocked returns the service's state.
func (s *service) stateLocked() string {
	switch l := s.life; {
	case l == nil && s.health.suspended(time.Now()):
		return ServiceSuspended
	case l == nil && s.timer != nil:
		return ServiceWaiting
	case l == nil:
		return ServiceStopped
	case l.stopping:
		return ServiceStopping
	case l.instance != nil:
		return ServiceRunning
	}
	return ServiceStarting
}

// tellStateLocked tells of the service's state if it is another one than was told of last.
func (s *service) tellStateLocked() {
	was, state := cmp.Or(s.told, ServiceStopped), s.stateLocked()
	if state == was || state == ServiceStarting && s.life.served { // it has lost its registration: it ends, or registers again
		return
	}
	s.told = state
	s.b.events.add(Event{Kind: EventServiceState, Service: s.name, Was: was, State: state, DueAt: s.dueLocked(state)})
}

// dueLocked returns until when the service is in a state, if that is known.
func (s *service) dueLocked(state string) wire.Time {
	switch state {
	case ServiceSuspended:
		return wire.At(s.health.Suspended)
	case ServiceWaiting:
		return wire.At(s.due)
	}
	return 0
}

// told returns an exit as an event has it.
func (e Exit) told() *Exit {
	e.Stderr, e.Why = nil, wire.Cut(e.Why, maxEventText)
	return &e
}

// pendingLocked says what a reload has left for the next start.
func (s *service) pendingLocked() string {
	switch {
	case s.removed:
		return PendingRemoval
	case s.life != nil && s.life.keeper != nil && !startsAlike(s.life.def, s.def):
		return PendingChange
	}
	return ""
}

// info describes the service.
func (s *service) info() (ServiceInfo, *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := ServiceInfo{Name: s.name, Endpoints: s.def.Endpoints, State: s.stateLocked(), Starts: s.health.Starts, Pending: s.pendingLocked()}
	if s.last.Status != "" {
		last := s.last
		info.Last = &last
	}
	info.DueAt = s.dueLocked(info.State)
	if pause := s.health.next(s.def.ThrottleInterval); info.State == ServiceStopped && pause.After(time.Now()) {
		info.DueAt = wire.At(pause)
	}
	if s.life == nil {
		return info, nil
	}
	if l := s.life; l.keeper != nil {
		info.PID, info.Instance, info.StartedAt = l.pid(), l.number, wire.At(l.begun)
	}
	if i := s.life.instance; i != nil {
		info.PID, info.Instance, info.StartedAt = i.process.PID, i.number, wire.At(i.since)
	}
	return info, s.life.instance
}

// details describes the service with what its file says.
func (s *service) details() (ServiceDetails, *instance) {
	info, i := s.info()
	s.mu.Lock()
	defer s.mu.Unlock()
	def := s.def
	d := ServiceDetails{
		ServiceInfo: info, File: def.File, Program: def.Program, User: def.User, Group: def.Group, KeepAlive: def.KeepAlive.String(), RunAtLoad: def.RunAtLoad,
		Throttle: def.ThrottleInterval, Start: def.StartTimeout, Stop: def.StopTimeout, Idle: def.IdleExit, Hang: def.HangTimeout,
		Allow:   AllowInfo{Open: texts(def.Allow.Open), Register: texts(def.Allow.Register), Admin: texts(def.Allow.Admin)},
		Waiting: len(s.queue), Failures: s.health.Quick, Stopped: s.stopped,
	}
	if def.Stdout == "" || def.Stderr == "" {
		d.Log = LogPath(s.b.conf.Socket, s.name)
	}
	if s.life != nil && s.life.keeper != nil {
		d.Keeper = s.life.keeper.Record().Keeper.PID
	}
	if s.cause.Kind != "" {
		cause := s.cause
		d.Cause = &cause
	}
	return d, i
}

func texts(rules servicefile.Rules) (list []string) {
	for _, r := range rules {
		list = append(list, r.String())
	}
	return list
}
