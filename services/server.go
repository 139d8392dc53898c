package services

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// drainWait is how long a server that is stopped waits for its sessions' requests, if it says nothing else.
const drainWait = 5 * time.Second

// A Server serves endpoints. Its zero value with Endpoints set is useful; it is not changed while it serves.
type Server struct {
	// Endpoints are the methods of each endpoint, at most wire.MaxEndpoints.
	Endpoints map[string]*Mux
	// Service is the service's name; empty: that of the first endpoint, by name.
	Service string
	// Accept is asked before a session is opened; an error refuses it, with its code if it has one. The client's credentials have been taken from its socket. It
	// is called on several goroutines, and must return when its context ends, after 10 s or when the server is stopped. Nil accepts all.
	Accept func(context.Context, Opening) error
	// Opened is called, if it is set, with each session that has begun. It must not block: the next hand-over waits for it.
	Opened func(*session.Session)
	// Called is told, if it is set, of each call, one-way message, raw stream and streaming call once its handler has returned, and of those that have no
	// handler. It sees and changes nothing. It is called on the goroutines of the handlers, several at a time and with no lock held, before the result
	// leaves, and must not block: the client waits for it, and so do later messages for a one-way message. One that panics is logged, and the result stands.
	Called func(Call)
	// Socket is the path of the broker's socket; empty: FAIRLEAD_SOCKET, or the default of this user.
	Socket string
	// Drain is how long the requests in flight may take when the server is stopped; zero: 5 s.
	Drain time.Duration
	// Limits are what each session accepts of its client; zero: wire.DefaultLimits.
	Limits wire.Limits
	// Logger is told of faults, and once each time that there is no broker to register with, or that it is lost; nil: nobody is.
	Logger *slog.Logger
	// Ready is called, if it is set, each time a broker has accepted the registration.
	Ready func()
}

// Serve registers the endpoints with the broker, which it waits for, and serves sessions until ctx ends, the broker asks it to stop, or the broker asks whether
// it is idle and it is: there is no session, none is being opened, and no handler runs. Then it drains: it tells its clients, answers what is in flight, and
// returns nil when all has ended. When it loses the broker it keeps its sessions and registers again with them. It fails where the broker refuses the first
// registration: with wire.Conflict, naming the owner, for an endpoint that is taken, or with wire.NotPermitted.
func (s Server) Serve(ctx context.Context) error {
	if len(s.Endpoints) == 0 {
		return wire.Errorf(wire.Malformed, "serve: no endpoints")
	}
	host, err := NewHost(s)
	if err != nil {
		return err
	}
	host.files = openFiles()
	defer host.Release()
	s.Service = cmp.Or(s.Service, slices.Min(slices.Collect(maps.Keys(s.Endpoints))))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := &registrar{conf: s, host: host, log: host.log, stop: stop}
	var control *session.Session
	for ctx.Err() == nil {
		if control, err = r.register(ctx); err != nil {
			break
		}
		select {
		case <-control.Done():
			control.Wait() // hand-overs that were still queued are taken first
			r.reporting.Wait()
			if ctx.Err() == nil {
				r.log.Info("broker lost: sessions go on", "service", s.Service)
			}
		case <-ctx.Done():
		}
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	r.leave(control)
	return nil
}

// A registrar keeps a service registered with its broker.
type registrar struct {
	conf Server
	host *Host
	log  *slog.Logger
	stop context.CancelFunc

	number     int64  // of this instance, as the broker that started it said; 0: none did
	registered bool   // at least once
	broker     uint32 // the uid of the broker that was first
	reporting  sync.WaitGroup
}

// leave tells the broker that no more sessions are wanted, drains those there are, and reports how they ended.
func (r *registrar) leave(control *session.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(r.conf.Drain, drainWait))
	defer cancel()
	if control != nil {
		control.Terminate()
	}
	r.host.drain(ctx, "the service is being stopped")
	if control == nil {
		return
	}
	last, cancelLast := context.WithTimeout(context.Background(), time.Second)
	defer cancelLast()
	for { // the reporter may be gone with the control connection: then nothing is told
		batch := r.host.Take()
		if len(batch) == 0 || control.Call(last, wire.MethodSessions, wire.Sessions{Sessions: batch}, nil) != nil {
			break
		}
	}
	_ = control.Drain(last, "the service is being stopped") // so that the question that stopped it is answered; a broker that is slow to let go is no fault
	control.Wait()
	r.reporting.Wait()
}

// newsWait is how long the news of a session waits for more: what opened and is used at once has the processors for itself, and a short one is told in one message.
const newsWait = 2 * time.Millisecond

// report tells the broker what opened and what ended, until the control connection is lost.
func (r *registrar) report(control *session.Session) {
	for {
		batch := r.host.Take()
		if len(batch) == 0 {
			select {
			case <-r.host.News():
				select {
				case <-time.After(newsWait):
				case <-control.Done():
				}
				continue
			case <-control.Done():
				return
			}
		}
		if err := control.Call(control.Context(), wire.MethodSessions, wire.Sessions{Sessions: batch}, nil); err != nil {
			r.host.news.again(batch)
			if control.Context().Err() == nil {
				r.log.Error("the broker does not take the news of sessions", "service", r.conf.Service, "code", wire.CodeOf(err), "err", err)
				control.Abort(wire.End{Code: wire.Interrupted, Origin: wire.Local, Text: "the broker takes no news"})
			}
			return
		}
	}
}

// refusedForGood reports whether the broker's answer to a registration will not change by waiting.
func refusedForGood(err error) bool {
	return errors.Is(err, wire.Conflict) || errors.Is(err, wire.NotPermitted) || errors.Is(err, wire.Malformed) || errors.Is(err, wire.Unsupported)
}
