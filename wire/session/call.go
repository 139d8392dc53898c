package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A pending request has been given an id and is not yet answered. It holds its credit until the reply comes, whoever still waits for it.
type pending struct {
	load      load
	method    string
	until     time.Time   // the caller's; zero: no deadline
	done      chan result // room for one
	out       outgoing    // its frame
	abandoned bool        // nobody waits any more; guarded by the session's mutex
	flush     bool        // it asks for nothing but its turn
}

// A result is a reply that came, or why none does.
type result struct {
	body    []byte
	large   bool // the value comes on a stream
	files   []*os.File
	missing error // why files did not all arrive
	err     error
}

func (p *pending) complete(r result) { p.done <- r }

// requestRoom is more than a Request has beside its method and value, in bytes.
const requestRoom = 32

// fewCalls is how many calls may be waiting on a session for a further one to write its own frame. With more, the frames that come together leave together, and
// that of a single caller is no later for it.
const fewCalls = 4

// errNoLane is why descriptors cannot travel.
var errNoLane = wire.Errorf(wire.Unsupported, "this session has no lane, and carries no descriptors: a side does not offer it, as with FAIRLEAD_LANE=0")

// Call sends a request and waits for its reply, which it decodes into reply unless that is nil. A nil request has no value. Values may have up to
// wire.MaxLarge bytes, and up to wire.MaxFiles descriptors: fields of type *os.File. Those in request stay the caller's; those that reply takes are the
// caller's, too. The deadline of ctx travels with the request; when ctx ends, the handler's context at the other end does too.
// A deadline holds exactly, and a call that is canceled returns within 5 ms of that.
// Every failure is a *wire.Error: the peer's own, DeadlineExceeded, Canceled, Terminating, OverQuota, Malformed, Unsupported for descriptors where there
// is no lane, or the code of the session's end. Its Sent says whether the request had left.
func (s *Session) Call(ctx context.Context, method string, request, reply any) error {
	encoded := takeBuffer()
	files, err := s.encodeValue(encoded, request, wire.MaxLarge)
	var r result
	var sent bool
	if err == nil {
		r, sent, err = s.roundTrip(ctx, wire.Request{Method: method, Value: encoded.b}, files)
	}
	encoded.giveBack()
	if err == nil && reply != nil {
		r.files, err = wire.UnmarshalFiles(orNil(r.body), r.files, reply)
	}
	socket.Discard(r.files)
	if err == nil {
		return nil
	}
	failed := *wire.AsError(fmt.Errorf("call %s of %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, err))
	failed.Sent = sent
	return &failed
}

// encodeValue encodes a value of at most limit bytes to an empty buffer, and returns copies of its descriptors.
func (s *Session) encodeValue(to *buffer, v any, limit int) ([]*os.File, error) {
	value, files, err := wire.AppendFiles(to.b, v)
	switch {
	case err != nil:
		return nil, err
	case len(value) > limit:
		return nil, wire.Errorf(wire.OverQuota, "a value of %d bytes, limit %d", len(value), limit)
	case len(files) > 0 && !s.conf.Lane:
		return nil, errNoLane
	}
	to.b = value
	copies, err := socket.Copy(files)
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		err = wire.Errorf(wire.OverQuota, "%v", err)
	case err != nil: // it is closed
		err = wire.Errorf(wire.Malformed, "%v", err)
	}
	return copies, err
}

// roundTrip sends one request and returns its result, and whether the request had left. It owns files.
func (s *Session) roundTrip(ctx context.Context, request wire.Request, files []*os.File) (r result, sent bool, err error) {
	p := takePending()
	p.load = load{int64(len(request.Value)), int64(len(files))}
	value := request.Value
	large := len(value)+len(request.Method)+requestRoom > wire.MaxBody
	if large {
		request.Value, request.Length = nil, int64(len(value))
	}
	p.out.files, p.method = files, request.Method
	p.until, _ = ctx.Deadline()
	id, err := s.prepare(ctx, p, &request, large)
	if err == nil {
		err = p.out.request(wire.KindRequest, id, &request)
	}
	if err != nil {
		s.forget(id, p)
		socket.CloseFiles(files)
		return r, false, err
	}
	if large {
		p.out.frame.Flags |= wire.FlagLarge
		p.out.left = make(chan struct{})
	}
	if err := s.enqueue(ctx, id, p); err != nil {
		return r, false, err
	}
	if large {
		return s.exchangeLarge(ctx, id, p, value)
	}
	if r, sent, err = s.await(ctx, id, p); err == nil {
		p.giveBack()
	}
	return r, sent, err
}

// request makes the frame of a request or a one-way message, with the descriptors that o has.
func (o *outgoing) request(kind wire.Kind, id uint32, r *wire.Request) error {
	o.body = takeBuffer()
	o.body.b = r.Append(o.body.b)
	n := len(o.body.b)
	o.frame = wire.Frame{Header: wire.Header{Kind: kind, ID: id, Files: uint8(len(o.files)), Length: uint32(n)}, Body: o.body.b}
	if n > wire.MaxBody {
		return wire.Errorf(wire.OverQuota, "write a frame: %v of %d bytes, limit %d", kind, n, wire.MaxBody)
	}
	return nil
}

// prepare checks a request, takes the credit for it and gives it its id. With an error it may have an id.
func (s *Session) prepare(ctx context.Context, p *pending, r *wire.Request, large bool) (id uint32, err error) {
	if err := cmp.Or(ctx.Err(), r.Validate()); err != nil {
		return 0, err
	}
	if large && s.streamless {
		return 0, wire.Errorf(wire.OverQuota, "a request of %d bytes, and this session takes no more than %d", r.Length, wire.MaxBody)
	}
	id, err = s.begin(ctx, p)
	r.Within = within(ctx)
	return id, err
}

// enqueue queues the frame of a request. When that fails, the request is forgotten.
func (s *Session) enqueue(ctx context.Context, id uint32, p *pending) error {
	if len(p.out.files) > 0 {
		p.out.unsent = func(err error) { s.unsent(id, p, err) }
	}
	if s.out.push(&p.out, ctx.Done()) {
		return nil
	}
	s.forget(id, p)
	socket.CloseFiles(p.out.files)
	return ctx.Err()
}

// exchangeLarge sends the value of a large request behind its frame, and waits for the reply.
func (s *Session) exchangeLarge(ctx context.Context, id uint32, p *pending, value []byte) (r result, sent bool, err error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	begun := make(chan bool, 1)
	if !s.spawn(func() { begun <- s.followUp(following, id, value, &p.out) }) {
		begun <- false
	}
	r, sent, err = s.await(ctx, id, p)
	stop()                // a reply may come before the value has been taken, and then nobody needs it
	if !<-begun && sent { // or the peer would wait for it
		s.out.pushNow(&outgoing{frame: wire.Frame{Header: wire.Header{Kind: wire.KindCancel, Flags: wire.FlagLarge, ID: id}}})
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // and not what the peer says of a value that was cut off
	}
	return r, sent, err
}

// followUp sends the value of a large request when its frame has been written: a body whose request was withdrawn would be nobody's. It reports
// whether the value has begun. When it fails, the reply or the session's end says more.
func (s *Session) followUp(ctx context.Context, id uint32, value []byte, out *outgoing) (begun bool) {
	select {
	case <-out.left:
	case <-ctx.Done():
		return false
	case <-s.done:
		return false
	}
	y, err := s.beginLarge(ctx, wire.Header{ID: id}, len(value))
	if err == nil {
		begun = true
		err = s.sendLarge(ctx, y, value, 0)
	}
	if err != nil && ctx.Err() == nil {
		s.log().Debug("large request was not taken", "err", err)
	}
	return begun
}

// await waits for the reply to a request that is queued.
func (s *Session) await(ctx context.Context, id uint32, p *pending) (r result, sent bool, err error) {
	if s.takeLead(p) {
		s.lead(p)
	}
	select {
	case r = <-p.done:
	case <-ctx.Done():
		select {
		case r = <-p.done: // the reply came first
		default:
			return r, s.giveUp(id, p), ctx.Err()
		}
	}
	if r.err != nil {
		return r, !s.out.withdraw(&p.out), r.err
	}
	if r.missing != nil {
		s.drain(id, r)
		return result{}, true, r.missing
	}
	if r.large {
		defer s.arriving.Done()
		r.body, err = s.receiveLarge(ctx, bodyKey{reply: true, id: id}, anyLength)
	}
	return r, true, err
}

// begin takes the credit for a request, and gives it its id. With an error it has neither.
func (s *Session) begin(ctx context.Context, p *pending) (id uint32, err error) {
	if err := s.calls.take(ctx, s.ctx, p.load); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			s.calls.back(1, p.load)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return 0, s.ended.Err()
	case s.terminating && !p.flush:
		return 0, wire.Errorf(wire.Terminating, "the session is being ended")
	}
	for {
		s.nextID++
		if _, used := s.pending[s.nextID]; s.nextID != 0 && !used {
			break
		}
	}
	if s.pending == nil {
		s.pending = map[uint32]*pending{}
	}
	s.pending[s.nextID] = p
	p.out.joins = len(s.pending) > fewCalls
	s.giveOnLocked()
	if !p.flush {
		s.stats.callsMade.Add(1)
	}
	return s.nextID, nil
}

// forget drops a request that never left. One without an id is none.
func (s *Session) forget(id uint32, p *pending) {
	if id == 0 {
		return
	}
	s.mu.Lock()
	_, known := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if known {
		s.calls.back(1, p.load)
	} else { // the session has ended, or a peer answers what it was not asked
		s.drain(id, <-p.done)
	}
}

// drain lets go of a reply that nobody takes.
func (s *Session) drain(id uint32, r result) {
	socket.Discard(r.files)
	if r.large {
		s.arriving.Done()
		s.discardLarge(bodyKey{reply: true, id: id})
	}
}

// unsent completes a request that could not leave for its descriptors' sake.
func (s *Session) unsent(id uint32, p *pending, err error) {
	s.mu.Lock()
	_, known := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if known {
		s.calls.back(1, p.load)
		p.complete(result{err: err})
	}
}

// giveUp stops waiting for a reply, and reports whether the request had left. If so, the peer is told, and the credit comes back with the reply.
func (s *Session) giveUp(id uint32, p *pending) (left bool) {
	if s.out.withdraw(&p.out) {
		s.forget(id, p)
		return false
	}
	s.mu.Lock()
	_, open := s.pending[id]
	p.abandoned = true
	s.mu.Unlock()
	if open {
		s.out.pushNow(&outgoing{frame: wire.Frame{Header: wire.Header{Kind: wire.KindCancel, ID: id}}})
	} else { // it was answered meanwhile
		s.drain(id, <-p.done)
	}
	return true
}

// replied takes a reply from the peer.
func (s *Session) replied(a arrived) error {
	r := result{body: a.Body, large: a.Flags&wire.FlagLarge != 0, files: a.files, missing: a.missing}
	if a.Flags&wire.FlagError != 0 {
		e, err := wire.DecodeError(a.Body)
		if err == nil && a.Files > 0 {
			err = wire.Errorf(wire.Malformed, "an error with %d descriptors", a.Files)
		}
		if err != nil {
			return err
		}
		e.Origin = wire.Peer
		r = result{err: e}
	}
	if r.err == nil && len(a.Body) > 0 {
		if err := wire.Walk(a.Body); err != nil {
			return err
		}
	}
	if r.large && s.streamless {
		return wire.Errorf(wire.Unsupported, "a large reply, and this session has no streams")
	}
	s.mu.Lock()
	p, known := s.pending[a.ID]
	delete(s.pending, a.ID)
	ended := s.ended != nil
	late := known && p.abandoned
	if r.large && known {
		s.arriving.Add(1)
	}
	var load load
	if known {
		load = p.load
	}
	if known && !late {
		p.complete(r) // from then on p may be another request
	}
	s.mu.Unlock()
	switch {
	case !known && !ended:
		return wire.Errorf(wire.Malformed, "reply to request %d, which is not in flight", a.ID)
	case !known:
		socket.Discard(a.files)
		return nil
	case late:
		s.stats.late.Add(1)
		s.drain(a.ID, r)
	}
	s.calls.back(1, load)
	return nil
}
