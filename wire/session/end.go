package session

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// Close ends the session here at once, tells the peer, and returns when the peer has let go, or after 5 s.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	return s.Shutdown(ctx, wire.End{Code: wire.Invalid, Origin: wire.Local, Text: "closed"})
}

// Shutdown ends the session here with the given end, tells the peer, and returns when the peer has read all and let go, or when ctx ends, whose
// error it then returns. The transport is gone in either case. It fails with wire.DeadlineExceeded if another call, whose time was over, or Abort has let
// it go before the peer did.
func (s *Session) Shutdown(ctx context.Context, end wire.End) error {
	end.Code = cmp.Or(end.Code, wire.Invalid)
	end = end.Bounded()
	if !s.finish(end) {
		select { // the hooks of the end that came first return before the peer's Close does
		case <-s.done:
		case <-ctx.Done():
		}
	}
	s.forsake()
	told := wire.End{Code: end.Code, Origin: s.conf.Origin, Text: end.Text}
	if end.Origin == wire.Broker {
		told.Origin = wire.Broker
	}
	f, err := wire.NewFrame(wire.KindEnd, 0, told)
	if err == nil {
		s.out.finish(&f)
	}
	s.needReader()
	own := make(chan struct{})
	go func() { // ends when the transport is gone, soon after release below
		s.own.Wait()
		close(own)
	}()
	select {
	case <-own:
		if !s.letGo.Load() {
			err = wire.Errorf(wire.DeadlineExceeded, "end a session: another end of it did not wait for the peer")
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.release()
	return err
}

// Abort ends the session here without telling the peer anything but the loss of its socket.
func (s *Session) Abort(end wire.End) {
	s.finish(end)
	s.release()
}

// giveUpOn ends the session without telling a peer that does not listen, unless it has ended: then its transport has its time to go.
func (s *Session) giveUpOn(end wire.End) {
	if s.finish(end) {
		s.release()
	}
}

// writeFailed ends the session when a write failed for another reason than that the peer is gone, which is for the reader to tell.
func (s *Session) writeFailed(err error) {
	if s.conf.Lane && !socket.Lost(err) {
		s.giveUpOn(wire.End{Code: wire.Internal, Origin: wire.Local, Text: err.Error()})
	}
}

// Wait returns when the session has ended and all its goroutines and handlers have returned.
func (s *Session) Wait() {
	<-s.done
	s.own.Wait()
	s.handlers.Wait()
}

// drainFlush is how long a session that is being drained waits for what the peer has sent before it was told.
const drainFlush = time.Second

// Drain tells the peer that this side is terminating, takes no new requests, waits until those that were taken are answered or ctx ends, and then
// ends the session with the given text.
func (s *Session) Drain(ctx context.Context, text string) error {
	s.Terminate()
	flushing, cancel := context.WithTimeout(ctx, drainFlush)
	s.flush(flushing) // what has left the peer before it was told so is answered, too
	cancel()
	s.mu.Lock()
	idle := make(chan struct{})
	if s.busyLocked() {
		s.idle = idle
	} else {
		close(idle)
	}
	s.mu.Unlock()
	select {
	case <-idle:
	case <-s.done:
	case <-ctx.Done():
	}
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(deadline) < time.Second { // and still the last words must leave
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
	}
	return s.Shutdown(ctx, wire.End{Code: wire.Terminating, Origin: wire.Local, Text: text})
}

// busyLocked reports whether a request or one-way message of the peer is not yet done with.
func (s *Session) busyLocked() bool { return s.answering > 0 || s.unhandled > 0 }

// settleLocked tells a draining session that it has nothing left to do.
func (s *Session) settleLocked() {
	if s.idle != nil && !s.busyLocked() {
		close(s.idle)
		s.idle = nil
	}
}

// finish ends the session here, once, and reports whether this call did: later ends change nothing.
func (s *Session) finish(end wire.End) bool {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return false
	}
	s.ended = &end
	waiting, hooks := s.pending, s.hooks
	s.pending, s.hooks = nil, nil
	s.mu.Unlock()

	s.cancel(end.Err())
	for _, p := range waiting {
		p.complete(result{err: end.Err()})
	}
	for _, f := range hooks {
		f(end)
	}
	close(s.done)
	return true
}

// lost ends the session because its link can no longer be read.
func (s *Session) lost(err error) {
	s.gone()
	if s.mux.over() {
		err = s.muxCause(err)
	}
	if breach := s.broken(err); breach != nil {
		if s.conf.Lane { // the peer can be told
			s.breach(breach)
			return
		}
		s.log().Warn("peer broke the protocol", "peer", s.conf.Peer.PID, "code", breach.Code, "err", breach.Text)
		s.finish(wire.End{Code: breach.Code, Origin: wire.Local, Text: breach.Text})
		s.release()
		return
	}
	text := "the peer is gone"
	if !errors.Is(err, io.EOF) {
		text += ": " + err.Error()
	}
	s.finish(wire.End{Code: s.lostCode(), Origin: wire.Peer, Text: text})
	s.release()
}

// muxCause returns why yamux closed, which only AcceptStream tells: a stream's error is io.EOF for everything. Streams that nobody has accepted
// come first, with ErrSessionShutdown.
func (s *Session) muxCause(err error) error {
	for range acceptBacklog {
		if _, cause := s.mux.session().AcceptStream(); cause != nil && cause != yamux.ErrSessionShutdown {
			return cause
		}
	}
	return err
}

// broken returns how the peer broke yamux's protocol, if that is why the link can no longer be read.
func (s *Session) broken(err error) *wire.Error {
	if breach := s.conn.breached(); breach != nil {
		return breach
	}
	for _, cause := range []error{yamux.ErrDuplicateStream, yamux.ErrRecvWindowExceeded, yamux.ErrUnexpectedFlag} {
		if errors.Is(err, cause) {
			return wire.Errorf(wire.Malformed, "read a frame: yamux: %v", cause)
		}
	}
	return nil
}

// lostCode is the code for losing the peer: for a client its service may come back, for an instance its client never does.
func (s *Session) lostCode() wire.Code {
	if s.conf.Opener {
		return wire.Interrupted
	}
	return wire.Invalid
}

// ending takes the peer's end frame: it ends the session here, answers with the end of this side's frames, and waits, bounded, for the peer to
// have read them.
func (s *Session) ending(told wire.End) {
	end := wire.End{Code: told.Code, Origin: wire.Peer, Text: told.Text}
	if told.Origin == wire.Broker && s.conf.Opener { // an instance speaks for its broker, a client does not
		end.Origin = wire.Broker
	}
	switch told.Code {
	case wire.Invalid, wire.Interrupted, wire.Terminating:
		end.Code = s.lostCode()
	}
	first := s.finish(end)
	if !first {
		<-s.done // its hooks come before the peer's Close returns, whoever calls them
	}
	watchdog := time.AfterFunc(closeWait, s.release)
	defer watchdog.Stop()
	s.drop(func(err error) bool { return err != nil })
	s.gone()
	s.arriving.Wait() // the peer may exit as soon as it is told that all was read
	s.out.finish(nil)
	<-s.out.finished
	if first && !s.conf.Lane {
		<-s.mux.session().CloseChan() // who closed the session lets its socket go first, or the watchdog does
	}
	s.release()
}

// breach ends the session because the peer broke the protocol.
func (s *Session) breach(err error) {
	e := wire.AsError(err)
	s.log().Warn("peer broke the protocol", "peer", s.conf.Peer.PID, "code", e.Code, "err", wire.Printable(e.Text, wire.MaxText))
	text := wire.Cut(e.Text, wire.MaxText)
	if !s.finish(wire.End{Code: e.Code, Origin: wire.Local, Text: text}) {
		<-s.done
	}
	s.forsake()
	if f, err := wire.NewFrame(wire.KindEnd, 0, wire.End{Code: e.Code, Origin: wire.Peer, Text: text}); err == nil {
		s.out.finish(&f)
	}
	watchdog := time.AfterFunc(time.Second, s.release)
	defer watchdog.Stop()
	s.drop(func(err error) bool { // until it has seen the end
		_, ours := errors.AsType[*wire.Error](err)
		return err != nil && !ours
	})
	s.gone()
	<-s.out.finished // a peer that sends nothing more may still read it
	s.release()
}

// gone notes that nothing more comes from the peer, unless the transport was let go here before.
func (s *Session) gone() {
	if !s.released.Load() {
		s.letGo.Store(true)
	}
}

// drop reads what the peer still sends and drops it, until an error is the last one.
func (s *Session) drop(last func(error) bool) {
	for {
		a, err := s.link.read()
		socket.Discard(a.files)
		if last(err) {
			return
		}
	}
}

// forsake lets nobody wait any longer for a large body that has not begun.
func (s *Session) forsake() { s.forsaking.Do(func() { close(s.forsaken) }) }

// release lets the transport go.
func (s *Session) release() {
	s.forsake()
	s.shut.Do(func() {
		s.released.Store(true)
		s.conn.Close()
		s.mux.close()
		s.out.fail()
	})
}

// Terminate tells the peer that this side takes no new requests; one-way messages and replies go on.
func (s *Session) Terminate() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.notify(wire.Notice{Name: wire.NoticeTerminating})
}

// Terminating reports whether the peer takes no new requests, or the session has ended.
func (s *Session) Terminating() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.terminating || s.ended != nil
}
