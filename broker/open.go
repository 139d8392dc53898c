package broker

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// open routes a client to an instance and hands its connection over.
func (b *Broker) open(conn *net.UnixConn, client party, body []byte) {
	defer client.handle.Close()
	began := time.Now()
	var o wire.Open
	if err := wire.Unmarshal(body, &o); err != nil {
		b.counters.open("", err, began)
		b.refuse(conn, err)
		return
	}
	err := b.mayOpen(client, o.Endpoint)
	if err == nil {
		err = b.tryOpen(conn, client, o)
	}
	err = scarce(err)
	b.counters.open(o.Endpoint, err, began)
	if err != nil {
		b.refuse(conn, err)
		b.overQuota(Event{Endpoint: o.Endpoint}, client.Process, err)
	}
	if wire.CodeOf(err) == wire.NotPermitted {
		b.denials.warn("denied", "peer", client.PID, "uid", client.UID, "endpoint", o.Endpoint)
	}
}

// tryOpen waits for an instance and hands the connection over, for as long as the client waits. With an error the connection is still the broker's.
func (b *Broker) tryOpen(conn *net.UnixConn, client party, o wire.Open) error {
	if err := b.quotas.Charge(client.UID, quota.Waiting); err != nil {
		return err
	}
	defer b.quotas.Discharge(client.UID, quota.Waiting)
	patience := openWait
	if o.Within > 0 {
		patience = time.Duration(min(o.Within, mostWait.Milliseconds())) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for first := false; ; first = true { // who has had its turn keeps it
		i, done, err := b.routeWhileThere(ctx, conn, client, o.Endpoint, first)
		if err != nil && b.ctx.Err() != nil {
			return b.goodbye()
		}
		if err != nil {
			return err
		}
		began := time.Now()
		taken, err := b.handOver(ctx, i, conn, client, o)
		b.counters.handOver(err, began)
		done(taken)
		if err != nil && b.ctx.Err() != nil { // it was under way
			return b.goodbye()
		}
		if err == nil || !i.over() || ctx.Err() != nil {
			return err
		}
		b.unregister(i) // another instance may take it
	}
}

// routeWhileThere is route for as long as the client at the other end of conn is there.
func (b *Broker) routeWhileThere(ctx context.Context, conn *net.UnixConn, client party, endpoint string, first bool) (*instance, handedOver, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	w, err := b.watch.Add(raw, watch.Socket, cancel)
	if err != nil {
		return nil, nil, fmt.Errorf("watch a client that waits: %w", err)
	}
	defer b.watch.Remove(w)
	return b.route(ctx, client, endpoint, first)
}

// route returns the instance that serves an endpoint. It has the service start one if it can, and waits until ctx ends. In its first moments a broker
// waits for the instances of the one before it to register. The open is handed over, or not, before done is called. With first it comes before those that wait.
func (b *Broker) route(ctx context.Context, client party, endpoint string, first bool) (i *instance, done handedOver, err error) {
	settled := time.NewTimer(time.Until(b.started.Add(settleWait)))
	defer settled.Stop()
	for {
		i, s, claimed := b.serving(endpoint)
		switch {
		case i != nil:
			return i, func(<-chan struct{}) {}, nil
		case s != nil:
			return s.get(ctx, client, endpoint, first)
		}
		select {
		case <-claimed:
		case <-settled.C:
			return nil, nil, b.unknown(client.who(), endpoint)
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// serving returns the instance that has an endpoint without a file, or by one from before a reload and until it ends, or else the service whose file has it. The channel is closed when another
// instance registers.
func (b *Broker) serving(endpoint string) (i *instance, s *service, claimed <-chan struct{}) {
	b.mu.Lock()
	i, s, claimed = b.endpoints[endpoint], b.owners[endpoint], b.claimed
	b.mu.Unlock()
	if i != nil && (i.over() || s != nil && s.name == i.service) {
		i = nil
	}
	return i, s, claimed
}

// handOver tells the client where it goes, and passes its connection to the instance. The channel is closed when the instance has accepted or refused it, or is lost; it is nil for who is
// over a limit. With an error the connection is still the broker's.
func (b *Broker) handOver(ctx context.Context, i *instance, conn *net.UnixConn, client party, o wire.Open) (taken <-chan struct{}, err error) {
	if err := b.quotas.Charge(client.UID, quota.Sessions, quota.Descriptors); err != nil {
		return nil, err
	}
	h, taken := b.enter(i, client, o)
	if i.local != nil {
		err = b.remember(h.Session, client)
	}
	if err == nil && h.Routed == nil {
		err = i.routed(conn, h.Session, b.lends(client))
	}
	if err == nil {
		err = i.take(ctx, h, conn)
	}
	if err != nil {
		b.table.drop(h.Session)
		b.forget(h.Session)
	}
	return taken, err
}

// lends reports whether a client is sent its instance's pidfd. What a client does not read stays on its way, and the kernel lets a user who is not root have no more of that than
// open files: unix(7), ETOOMANYREFS. So only so many sessions come with one that clients who read nothing leave room for what is handed over.
func (b *Broker) lends(client party) bool {
	return b.trusted(client.UID) || b.table.size() < b.files/4
}

// enter enters a session of an instance into the table, and returns what the instance is told of it. The client has been charged for it.
func (b *Broker) enter(i *instance, client party, o wire.Open) (h wire.HandOver, taken <-chan struct{}) {
	h = wire.HandOver{Session: session.NewID(), Endpoint: o.Endpoint, Title: o.Title, Features: o.Features, Limits: o.Limits, Client: client.Process}
	if i.relays && relays(o) {
		r := i.route(h.Session)
		h.Routed = &r
	}
	return h, b.table.begin(Session{
		ID: h.Session, Endpoint: o.Endpoint, Title: o.Title, OpenedAt: wire.At(time.Now()), Client: client.Process, Instance: i.process,
	}, i)
}

// relays reports whether a client leaves it to the instance to say where it was routed.
func relays(o wire.Open) bool { return slices.Contains(o.Features, wire.FeatureRelay) }
