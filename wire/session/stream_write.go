package session

import (
	"context"
	"io"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// Write writes all of b, as fast as the peer reads it. It fails with wire.Interrupted when the peer has let go of the stream; what that wrote before,
// as why it refused the stream, can still be read.
func (st *Stream) Write(b []byte) (n int, err error) {
	if err := st.use(wire.KindData); err != nil {
		return 0, err
	}
	for n < len(b) {
		chunk := b[n:min(len(b), n+maxWrite-wire.HeaderSize)]
		f := wire.Frame{Header: wire.Header{Kind: wire.KindData, Length: uint32(len(chunk))}, Body: chunk}
		if err := st.writeFrame(st.ctx, f); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// CloseWrite tells the peer that all is written. Reading goes on, for as long as it takes. A peer that has let go of the stream is told nothing,
// and that is no failure.
func (st *Stream) CloseWrite() error {
	st.mu.Lock()
	finished := st.finished
	st.finished = true
	st.mu.Unlock()
	if finished {
		return nil
	}
	err := st.writeFrame(st.ctx, wire.Frame{Header: wire.Header{Kind: wire.KindFinish}})
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone && !st.closed && st.s.ctx.Err() == nil {
		return nil
	}
	st.finished = err == nil || st.torn != nil || st.closed // else it can be tried again
	return err
}

// SetWriteDeadline bounds writes, also the one that is under way; zero is no bound. A write that is over its time fails with
// wire.DeadlineExceeded, and the stream cannot be written any more: part of it may have left.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deadline = t
	st.armLocked()
	if !st.closed && !st.gone {
		st.flow.SetWriteDeadline(t)
	}
	return nil
}

// armLocked has the write that is under way end at the deadline.
func (st *Stream) armLocked() {
	if st.timer != nil {
		st.timer.Stop()
		st.timer = nil
	}
	if cancel := st.writing; cancel != nil && !st.deadline.IsZero() {
		st.timer = time.AfterFunc(time.Until(st.deadline), func() { cancel(context.DeadlineExceeded) })
	}
}

// writeFrame writes a frame whole, until ctx ends. Nothing follows a frame that finishes, nor one of which only a part may have left.
func (st *Stream) writeFrame(ctx context.Context, f wire.Frame) error {
	st.writer <- struct{}{} // who has it leaves for the same reasons as we would
	defer func() { <-st.writer }()
	last := f.Kind != wire.KindData && f.Kind != wire.KindItem
	st.mu.Lock()
	torn, finished, closed := st.torn, st.finished, st.closed
	st.mu.Unlock()
	switch {
	case closed:
		return st.failed("write", io.EOF)
	case finished && !last:
		return wire.Errorf(wire.Invalid, "write stream %s: it was finished here", st.method)
	case torn != nil:
		return torn
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st.write(cancel)
	defer st.write(nil)
	if err := context.Cause(ctx); err != nil {
		return st.failed("write", err)
	}
	st.s.trace(sentFrame, st.flow.id, f)
	err := st.s.conn.writeFrame(ctx, st.flow, f)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	err = st.failed("write", err)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.torn = err
	return err
}

// write notes how to cancel the write that begins, or with nil that it is over.
func (st *Stream) write(cancel context.CancelCauseFunc) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.writing = cancel
	st.armLocked()
}
