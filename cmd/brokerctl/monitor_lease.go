package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// pastPatience is how long the network service may take to say what was before the monitor began.
	pastPatience = 2 * time.Second
	// lookPause is how long the broker may be silent before is seen whether there is a network service: not everybody is told when one has registered.
	lookPause = 2 * time.Second
)

// A leaseWatch watches the leases of a network service while one runs. It starts none.
//
//	idle ── one has registered, or was there ──▶ watching ── its session is lost ──▶ idle, and it is said
//
// All but changes and ended is the telling goroutine's.
type leaseWatch struct {
	m        *monitor
	changes  chan network.Change
	ended    chan error
	watching bool
	began    wire.Time // when the watching began
	since    wire.Time // when it was seen last that none is watched
	again    wire.Time // another one has registered at that time, while the loss of the one before is not known; 0: none has
	refused  bool      // it was said that this user may not watch
}

func (w *leaseWatch) init(m *monitor) {
	w.m, w.changes, w.ended = m, make(chan network.Change), make(chan error)
}

// begin watches the network service that runs, if one does. What it knows of before waits to be told by its time.
func (w *leaseWatch) begin(ctx context.Context, r broker.MonitorRequest) {
	since := r.Since
	if r.From == 1 { // all that is kept
		since = 1
	}
	w.watch(ctx, network.WatchRequest{NoList: true, Since: since}, 0)
	for patience := time.After(pastPatience); ; {
		select {
		case c := <-w.changes:
			if c.Kind != network.ChangeSynced {
				w.m.waiting = append(w.m.waiting, c)
				continue
			}
			if since != 0 && c.At > since {
				w.m.c.note(fmt.Sprintf("what happened to leases is known from %s on: the network service keeps the last of it, since it began", eventTime(c.At.Time().Local(), time.Now())))
			}
		case err := <-w.ended:
			w.over(ctx, err)
		case <-patience:
		case <-ctx.Done():
		}
		return
	}
}

// registered takes up a network service that has registered, unless it is watched.
func (w *leaseWatch) registered(ctx context.Context, at wire.Time) {
	switch {
	case w.m == nil: // leases are not asked for
	case at <= w.began: // that was before, and the one that it was may be gone: to open it would start another
	case w.watching:
		w.again = at
	default:
		w.watch(ctx, network.WatchRequest{}, at)
	}
}

// idle reports whether no network service is watched, and one that there were would be.
func (w *leaseWatch) idle() bool { return w.m != nil && !w.watching && !w.refused }

// look watches the network service if there is one.
func (w *leaseWatch) look(ctx context.Context) { w.watch(ctx, network.WatchRequest{}, w.since) }

// over notes that a network service is not watched any more, and says so if it was lost.
func (w *leaseWatch) over(ctx context.Context, err error) {
	w.watching, w.since = false, wire.At(time.Now())
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, wire.NotPermitted):
		if !w.refused {
			w.m.c.note("nothing is told of leases: " + err.Error())
		}
		w.refused = true
		return
	case err != nil && w.again == 0:
		w.m.c.note(fmt.Sprintf("the network service is lost, and what happens to leases is told again when there is one: %v", err))
	}
	if at := w.again; at != 0 {
		w.again = 0
		w.watch(ctx, network.WatchRequest{}, at)
	}
}

// watch watches a network service, if one runs. Of a list only what was allocated since a time is told.
func (w *leaseWatch) watch(ctx context.Context, r network.WatchRequest, since wire.Time) {
	w.watching, w.began = true, wire.At(time.Now())
	w.m.tasks.Go(func() {
		err := w.follow(ctx, r, since)
		select {
		case w.ended <- err:
		case <-ctx.Done():
		}
	})
}

func (w *leaseWatch) follow(ctx context.Context, r network.WatchRequest, since wire.Time) error {
	list, err := client.Call[broker.Services](ctx, w.m.on, broker.MethodServices, nil)
	if err != nil || !slices.ContainsFunc(list.Services, servesNetwork) {
		return err
	}
	return w.m.c.on(ctx, network.Endpoint, func(s *client.Session) error {
		for c, err := range network.Watch(ctx, s, r) {
			if err != nil {
				return err
			}
			switch {
			case c.Kind == network.ChangePresent && c.Lease.AllocatedAt >= since:
				c.Kind, c.At = network.ChangeAllocated, c.Lease.AllocatedAt
			case c.Kind == network.ChangePresent, c.Kind == network.ChangeSynced && !r.NoList:
				continue
			case c.Kind == network.ChangeDropped:
				since = c.At // of the list that follows all was told, or is missing
			}
			select {
			case w.changes <- c:
			case <-ctx.Done():
				return nil
			}
		}
		return nil
	})
}

// note says something beside what is printed.
func (c *command) note(text string) { fmt.Fprintf(c.errs, "brokerctl: %s\n", cli.Said(text)) }
