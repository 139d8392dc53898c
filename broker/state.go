package broker

import (
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
	switch {
	case info.State == ServiceSuspended:
		info.DueAt = wire.At(s.health.Suspended)
	case info.State == ServiceWaiting:
		info.DueAt = wire.At(s.due)
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
func (s *service) details() ServiceDetails {
	info, _ := s.info()
	s.mu.Lock()
	defer s.mu.Unlock()
	def := s.def
	d := ServiceDetails{
		ServiceInfo: info, File: def.File, Program: def.Program, User: def.User, Group: def.Group, KeepAlive: def.KeepAlive.String(), RunAtLoad: def.RunAtLoad,
		Throttle: def.ThrottleInterval, Start: def.StartTimeout, Stop: def.StopTimeout, Idle: def.IdleExit,
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
	return d
}

func texts(rules servicefile.Rules) (list []string) {
	for _, r := range rules {
		list = append(list, r.String())
	}
	return list
}
