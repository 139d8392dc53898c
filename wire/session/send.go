package session

import (
	"cmp"
	"context"
	"fmt"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// Send sends a one-way message. It returns when the message is queued, or, if it has descriptors, when it has left: nothing tells whether it was handled, see
// Flush. It waits until ctx ends for the peer to have handled earlier ones. The message has at most wire.MaxBody bytes with its method, and up to
// wire.MaxFiles descriptors, which stay the caller's. Failures are as those of Call.
func (s *Session) Send(ctx context.Context, method string, value any) error {
	err := s.send(ctx, method, value)
	if err == nil {
		return nil
	}
	return wire.AsError(fmt.Errorf("send %s to %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, err))
}

func (s *Session) send(ctx context.Context, method string, value any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	encoded := takeBuffer()
	defer encoded.giveBack()
	files, err := s.encodeValue(encoded, value, wire.MaxBody-len(method)-requestRoom)
	if err != nil {
		return err
	}
	request := wire.Request{Method: method, Value: encoded.b}
	out := &outgoing{files: files}
	err = cmp.Or(request.Validate(), out.request(wire.KindOneWay, 0, &request))
	l := load{int64(len(encoded.b)), int64(len(files))}
	if err == nil {
		err = s.oneWay.take(ctx, s.ctx, l)
	}
	if err != nil {
		socket.CloseFiles(files)
		return err
	}
	unsent := make(chan error, 1)
	if len(files) > 0 {
		out.left, out.unsent = make(chan struct{}), func(err error) { unsent <- err }
	}
	s.mu.Lock()
	ended, terminating := s.ended, s.terminating
	s.mu.Unlock()
	switch {
	case ended != nil:
		err = ended.Err()
	case terminating:
		err = wire.Errorf(wire.Terminating, "the session is being ended")
	case !s.out.push(out, ctx.Done()):
		err = ctx.Err()
	case len(files) > 0:
		return s.leave(ctx, out, unsent, l)
	}
	if err != nil {
		socket.CloseFiles(files)
		s.oneWay.back(1, l)
	}
	return err
}

// TrySend sends a one-way message as Send does if nobody has to wait for that, and nothing stands in its way. Else it does nothing and reports false, and Send
// waits or says what that is. It copies no descriptors: when it returns true those of value have left, and are closed.
func (s *Session) TrySend(method string, value any) bool {
	encoded := takeBuffer()
	defer encoded.giveBack()
	b, files, err := wire.AppendFiles(encoded.b, value)
	if err != nil || len(b) > wire.MaxBody-len(method)-requestRoom || len(files) > 0 && !s.conf.Lane || s.Terminating() {
		return false
	}
	encoded.b = b
	request := wire.Request{Method: method, Value: b}
	out := &outgoing{files: files}
	l := load{int64(len(b)), int64(len(files))}
	if request.Validate() != nil || out.request(wire.KindOneWay, 0, &request) != nil || !s.oneWay.try(l) {
		return false
	}
	if !s.out.offer(out) {
		s.oneWay.back(1, l)
		return false
	}
	return true
}

// leave waits until a one-way message with descriptors has left: the kernel may not take them. One that may have left is no failure: its receiver may have
// the descriptors.
func (s *Session) leave(ctx context.Context, out *outgoing, unsent <-chan error, l load) error {
	var err error
	select {
	case <-out.left:
		return nil
	case err = <-unsent:
	case <-s.done:
		err = context.Cause(s.ctx)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !s.out.withdraw(out) {
		return nil
	}
	s.oneWay.back(1, l)
	return err
}

// Flush returns when the peer has taken up all that this side has sent before: the handlers of one-way messages have returned, and those of requests run,
// or will without waiting for what comes later. It counts as a call, also where the peer takes no new requests any more. Failures are as those of Call.
func (s *Session) Flush(ctx context.Context) error {
	sent, err := s.flush(ctx)
	if err == nil {
		return nil
	}
	failed := *wire.AsError(fmt.Errorf("flush messages to %s: %w", s.conf.Endpoint, err))
	failed.Sent = sent
	return &failed
}

func (s *Session) flush(ctx context.Context) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	p := takePending()
	p.flush = true
	p.until, _ = ctx.Deadline()
	id, err := s.begin(ctx, p)
	if err != nil {
		return false, err
	}
	p.out.frame = wire.Frame{Header: wire.Header{Kind: wire.KindFlush, ID: id}}
	if err := s.enqueue(ctx, id, p); err != nil {
		return false, err
	}
	r, sent, err := s.await(ctx, id, p)
	if err == nil {
		p.giveBack()
	}
	socket.CloseFiles(r.files)
	return sent, err
}
