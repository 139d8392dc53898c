package session

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A pending request has been given an id and is not yet answered. It holds its credit until the reply comes, whoever still waits for it.
type pending struct {
	bytes     int64
	done      chan result // room for one
	abandoned bool        // nobody waits any more; guarded by the session's mutex
}

type result struct {
	body  []byte
	large bool // the value comes on a stream
	err   error
}

func (p *pending) complete(r result) { p.done <- r }

// Call sends a request and waits for its reply, which it decodes into reply unless that is nil. A nil request has no value. Values may have up to
// wire.MaxLarge bytes. The deadline of ctx travels with the request; when ctx ends, the handler's context at the other end does too.
// Every failure is a *wire.Error: the peer's own, DeadlineExceeded, Canceled, Terminating, OverQuota, Malformed, or the code of the
// session's end. Its Sent says whether the request had left.
func (s *Session) Call(ctx context.Context, method string, request, reply any) error {
	value, err := wire.Marshal(request)
	if err == nil && len(value) > wire.MaxLarge {
		err = wire.Errorf(wire.OverQuota, "a request of %d bytes, limit %d", len(value), wire.MaxLarge)
	}
	var sent bool
	if err == nil {
		value, sent, err = s.roundTrip(ctx, method, value)
	}
	if err == nil && reply != nil {
		err = wire.Unmarshal(value, reply)
	}
	if err == nil {
		return nil
	}
	failed := *wire.AsError(fmt.Errorf("call %s of %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, err))
	failed.Sent = sent
	return &failed
}

// roundTrip sends one request and returns the reply's value, and whether the request had left.
func (s *Session) roundTrip(ctx context.Context, method string, value []byte) (body []byte, sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	request := wire.Request{Method: method, Value: value}
	large := len(value)+len(method)+32 > wire.MaxBody
	if large {
		request.Value, request.Length = nil, int64(len(value))
	}
	if err := request.Validate(); err != nil {
		return nil, false, err
	}
	if large && s.mux == nil {
		return nil, false, wire.Errorf(wire.OverQuota, "a request of %d bytes, and this session takes no more than %d", len(value), wire.MaxBody)
	}
	p := &pending{bytes: int64(len(value)), done: make(chan result, 1)}
	if err := s.calls.take(ctx, s.ctx, p.bytes); err != nil {
		return nil, false, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		request.Within = max(1, (time.Until(deadline) + time.Millisecond - 1).Milliseconds()) // the handler's is not the earlier one
	}
	id, err := s.begin(p)
	if err != nil {
		s.calls.back(1, p.bytes)
		return nil, false, err
	}
	f, err := wire.NewFrame(wire.KindRequest, id, request)
	if err != nil {
		s.forget(id, p)
		return nil, false, err
	}
	if large {
		f.Flags |= wire.FlagLarge
	}
	out := &outgoing{frame: f}
	if large {
		out.written = make(chan struct{})
	}
	if !s.out.push(out, ctx.Done()) {
		s.forget(id, p)
		return nil, false, ctx.Err()
	}
	if large {
		return s.exchangeLarge(ctx, id, p, out, value)
	}
	return s.await(ctx, id, p, out)
}

// exchangeLarge sends the value of a large request behind its frame, and waits for the reply.
func (s *Session) exchangeLarge(ctx context.Context, id uint32, p *pending, out *outgoing, value []byte) (body []byte, sent bool, err error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	begun := make(chan bool, 1)
	if !s.spawn(func() { begun <- s.followUp(following, id, value, out) }) {
		begun <- false
	}
	body, sent, err = s.await(ctx, id, p, out)
	stop()                // a reply may come before the value has been taken, and then nobody needs it
	if !<-begun && sent { // or the peer would wait for it
		s.out.pushNow(&outgoing{frame: wire.Frame{Header: wire.Header{Kind: wire.KindCancel, Flags: wire.FlagLarge, ID: id}}})
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // and not what the peer says of a value that was cut off
	}
	return body, sent, err
}

// followUp sends the value of a large request when its frame has been written: a body whose request was withdrawn would be nobody's. It reports
// whether the value has begun. When it fails, the reply or the session's end says more.
func (s *Session) followUp(ctx context.Context, id uint32, value []byte, out *outgoing) (begun bool) {
	select {
	case <-out.written:
	case <-ctx.Done():
		return false
	case <-s.done:
		return false
	}
	y, err := s.beginLarge(ctx, wire.Header{ID: id}, len(value))
	if err == nil {
		begun = true
		err = s.sendLarge(ctx, y, value)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Debug("large request was not taken", "err", err)
	}
	return begun
}

// await waits for the reply to a request that is queued.
func (s *Session) await(ctx context.Context, id uint32, p *pending, out *outgoing) ([]byte, bool, error) {
	var r result
	select {
	case r = <-p.done:
	case <-ctx.Done():
		select {
		case r = <-p.done: // the reply came first
		default:
			return nil, s.giveUp(id, p, out), ctx.Err()
		}
	}
	if r.err != nil {
		return nil, !s.out.withdraw(out), r.err
	}
	if r.large {
		defer s.arriving.Done()
		body, err := s.receiveLarge(ctx, bodyKey{reply: true, id: id}, anyLength)
		return body, true, err
	}
	return r.body, true, nil
}

// begin gives a request its id.
func (s *Session) begin(p *pending) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return 0, s.ended.Err()
	case s.terminating:
		return 0, wire.Errorf(wire.Terminating, "the session is being ended")
	}
	for {
		s.nextID++
		if _, used := s.pending[s.nextID]; s.nextID != 0 && !used {
			break
		}
	}
	s.pending[s.nextID] = p
	s.stats.callsMade.Add(1)
	return s.nextID, nil
}

// forget drops a request that never left.
func (s *Session) forget(id uint32, p *pending) {
	s.mu.Lock()
	_, known := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if known {
		s.calls.back(1, p.bytes)
	} else if r := <-p.done; r.large { // a peer that answers what it was not asked
		s.arriving.Done()
		s.discardLarge(bodyKey{reply: true, id: id})
	}
}

// giveUp stops waiting for a reply, and reports whether the request had left. If so, the peer is told, and the credit comes back with the reply.
func (s *Session) giveUp(id uint32, p *pending, out *outgoing) (left bool) {
	if s.out.withdraw(out) {
		s.forget(id, p)
		return false
	}
	s.mu.Lock()
	_, open := s.pending[id]
	p.abandoned = true
	s.mu.Unlock()
	if open {
		s.out.pushNow(&outgoing{frame: wire.Frame{Header: wire.Header{Kind: wire.KindCancel, ID: id}}})
	} else if r := <-p.done; r.large { // it was answered meanwhile
		s.arriving.Done()
		s.discardLarge(bodyKey{reply: true, id: id})
	}
	return true
}

// replied takes a reply from the peer.
func (s *Session) replied(f wire.Frame) error {
	r := result{body: f.Body, large: f.Flags&wire.FlagLarge != 0}
	if f.Flags&wire.FlagError != 0 {
		e, err := wire.DecodeError(f.Body)
		if err != nil {
			return err
		}
		e.Origin = wire.Peer
		r = result{err: e}
	}
	if r.large && s.mux == nil {
		return wire.Errorf(wire.Unsupported, "a large reply, and this session has no streams")
	}
	s.mu.Lock()
	p, known := s.pending[f.ID]
	delete(s.pending, f.ID)
	ended := s.ended != nil
	late := known && p.abandoned
	if known && !late {
		if r.large {
			s.arriving.Add(1)
		}
		p.complete(r)
	}
	s.mu.Unlock()
	switch {
	case !known && !ended:
		return wire.Errorf(wire.Malformed, "reply to request %d, which is not in flight", f.ID)
	case !known:
		return nil
	case late:
		s.stats.late.Add(1)
		if r.large {
			s.discardLarge(bodyKey{reply: true, id: f.ID})
		}
	}
	s.calls.back(1, p.bytes)
	return nil
}

// Send sends a one-way message, with files attached where the session carries descriptors; they are closed when they have left, or when Send
// fails. It returns when the message is queued: nothing tells whether it was handled. It waits until ctx ends for the peer to have
// handled earlier ones. A value has at most wire.MaxBody bytes. Failures are as those of Call.
func (s *Session) Send(ctx context.Context, method string, value any, files ...*os.File) error {
	err := s.send(ctx, method, value, files)
	if err == nil {
		return nil
	}
	socket.CloseFiles(files)
	return wire.AsError(fmt.Errorf("send %s to %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, err))
}

func (s *Session) send(ctx context.Context, method string, value any, files []*os.File) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(files) > 0 && s.mux != nil {
		return wire.Errorf(wire.Unsupported, "this session carries no descriptors")
	}
	if len(files) > wire.MaxFiles {
		return wire.Errorf(wire.OverQuota, "%d descriptors, limit %d", len(files), wire.MaxFiles)
	}
	b, err := wire.Marshal(value)
	if err != nil {
		return err
	}
	request := wire.Request{Method: method, Value: b}
	if err := request.Validate(); err != nil {
		return err
	}
	f, err := wire.NewFrame(wire.KindOneWay, 0, request)
	if err != nil {
		return err
	}
	size := int64(len(b))
	if err := s.oneWay.take(ctx, s.ctx, size); err != nil {
		return err
	}
	s.mu.Lock()
	ended, terminating := s.ended, s.terminating
	s.mu.Unlock()
	switch {
	case ended != nil:
		err = ended.Err()
	case terminating:
		err = wire.Errorf(wire.Terminating, "the session is being ended")
	case !s.out.push(&outgoing{frame: f, files: files}, ctx.Done()):
		err = ctx.Err()
	}
	if err != nil {
		s.oneWay.back(1, size)
	}
	return err
}
