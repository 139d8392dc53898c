package broker

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// Visit opens a session of the broker's own with the instance that serves an endpoint now. It starts none, and keeps none from being idle: a visit is no open,
// nobody is told of it, and it is listed only while it lives. There is one at a time that the instance has not taken. It fails with wire.Unavailable where there is
// no instance, or where that has not taken the visit before; as the instance refuses it; or when ctx ends. What is returned must be closed.
func (b *Broker) Visit(ctx context.Context, endpoint, title string) (*session.Session, error) {
	b.mu.Lock()
	i := b.endpoints[endpoint]
	b.mu.Unlock()
	if i == nil || i.control == nil || i.over() {
		return nil, wire.Errorf(wire.Unavailable, "no instance serves %s now", wire.Printable(endpoint, wire.MaxEndpoint))
	}
	ours, file, err := socketpair()
	if err != nil {
		return nil, err
	}
	theirs, err := socket.FromFile(file)
	file.Close()
	if err != nil {
		ours.Close()
		return nil, err
	}
	h := wire.HandOver{Session: session.NewID(), Endpoint: endpoint, Title: title, Features: session.Offer(), Limits: wire.DefaultLimits, Client: b.self}
	if err := b.announce(ctx, i, h, theirs); err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	accepted, err := b.awaitAnswer(ctx, ours, h.Session)
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("visit %v: %w", i, err)
	}
	return session.New(ours, session.Config{
		ID: h.Session, Endpoint: endpoint, Title: title, Opener: true, Peer: i.process, Send: accepted.Limits, Receive: h.Limits,
		Lane: slices.Contains(accepted.Features, wire.FeatureLane), Logger: b.log,
	})
}

// announce hands a visit over. With an error the connection is still the caller's.
func (b *Broker) announce(ctx context.Context, i *instance, h wire.HandOver, theirs *net.UnixConn) error {
	s := Session{ID: h.Session, Endpoint: h.Endpoint, Title: h.Title, OpenedAt: wire.At(time.Now()), Client: h.Client, Instance: i.process}
	if !b.table.visit(s, i) {
		return wire.Errorf(wire.Unavailable, "%v has not taken the visit before: it is stopped or overloaded", i)
	}
	err := i.take(ctx, h, theirs)
	if err != nil {
		b.table.drop(h.Session)
	}
	return err
}

// awaitAnswer reads the instance's answer to a hand-over.
func (b *Broker) awaitAnswer(ctx context.Context, conn *net.UnixConn, id string) (accepted wire.Accepted, err error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	f, files, err := socket.ReadFrame(conn)
	socket.Discard(files)
	if err == nil {
		b.table.answered(id)
	}
	switch {
	case !stop(): // from here on the context says nothing about the connection
		return accepted, ctx.Err()
	case err != nil:
		return accepted, err
	case f.Kind == wire.KindAccepted:
		return accepted, wire.Unmarshal(f.Body, &accepted)
	case f.Kind == wire.KindRefused:
		refusal, err := wire.DecodeError(f.Body)
		if err != nil {
			return accepted, err
		}
		return accepted, refusal
	}
	return accepted, wire.Errorf(wire.Malformed, "it answers with a %v", f.Kind)
}
