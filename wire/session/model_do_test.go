package session_test

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// do does one operation.
func (h *history) do(op *operation) {
	time.Sleep(op.pause)
	ctx, stop := h.context(op)
	defer stop()
	s := h.sides[op.side]
	h.mark(&op.called, op.side, "does", op, nil)
	switch op.what {
	case calls:
		op.err = s.Call(ctx, op.method(), op.value, &op.reply)
	case sends:
		op.err = s.Send(ctx, op.method(), op.value)
	case flushes:
		op.err = s.Flush(ctx)
	case opens:
		op.err = h.stream(ctx, op)
	case states:
		h.set(op)
	case terminates:
		h.tell(op)
		s.Terminate()
	case drains:
		h.tell(op)
		op.err = s.Drain(ctx, op.end.Text)
	case shuts:
		op.err = s.Shutdown(ctx, op.end)
	case closing:
		op.err = s.Close()
	case aborts:
		s.Abort(op.end)
	}
	h.mark(&op.returned, op.side, "has done", op, op.err)
}

// context returns the context of an operation, which notes when it is canceled.
func (h *history) context(op *operation) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	if op.within > 0 {
		op.deadline = time.Since(h.began) + op.within
		ctx, cancel = context.WithTimeout(ctx, op.within)
	}
	if op.cancel < 0 {
		return ctx, cancel
	}
	t := time.AfterFunc(op.cancel, func() {
		h.mark(&op.canceled, op.side, "cancels", op, nil)
		cancel()
	})
	return ctx, func() { t.Stop(); cancel() }
}

func (op *operation) method() string {
	if op.does == unknown {
		return unknown
	}
	return "op"
}

// tell notes that a side is about to say that it terminates.
func (h *history) tell(op *operation) {
	h.mark(&h.sides[op.side].told, op.side, "terminates", op, nil)
}

// set sets a fact. The actors of a side set facts of different names.
func (h *history) set(op *operation) {
	name := fmt.Sprint(op.id)
	h.mu.Lock()
	facts := h.sides[op.side].facts
	full := len(facts) == wire.MaxFacts
	if !full {
		facts[name] = op.value
	}
	h.mu.Unlock()
	if !full {
		op.err = h.sides[op.side].SetFact(name, op.value)
	}
}

// stream has a stream echo the operation's value, and reads its reply.
func (h *history) stream(ctx context.Context, op *operation) error {
	st, err := h.sides[op.side].OpenStream(ctx, "echo")
	if err != nil {
		return err
	}
	defer st.Close()
	if deadline, ok := ctx.Deadline(); ok {
		st.SetReadDeadline(deadline)
		st.SetWriteDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == context.Canceled {
			st.Close()
		}
	})
	defer stop()
	var writer sync.WaitGroup
	defer writer.Wait()
	defer st.Close()
	writer.Go(func() {
		if _, err := io.WriteString(st, op.value); err == nil {
			st.CloseWrite()
		}
	})
	var b strings.Builder
	_, err = io.Copy(&b, st)
	op.reply = b.String()
	return err
}

// handler is what a side does with the other's messages.
func (h *history) handler(side int) session.Handler {
	return handler{
		methods: methods{
			"op":     func(ctx context.Context, m *session.Message) (any, error) { return h.serve(ctx, side, m) },
			"ignore": ignore,
			"gate": func(ctx context.Context, m *session.Message) (any, error) {
				h.mu.Lock()
				g := h.gates[side]
				h.mu.Unlock()
				return g.serve(ctx, m)
			},
			"hold": func(context.Context, *session.Message) (any, error) {
				h.mu.Lock()
				hold := h.holder
				h.mu.Unlock()
				<-hold
				return nil, nil
			},
		},
		streams: streams{"echo": echoStream},
	}
}

// serve handles the message of an operation.
func (h *history) serve(ctx context.Context, side int, m *session.Message) (any, error) {
	var value string
	err := m.Decode(&value)
	id, _, _ := strings.Cut(value, " ")
	n, _ := strconv.Atoi(id)
	if err != nil || n >= len(h.ops) || h.ops[n].value != value || h.ops[n].side == side || m.OneWay != (h.ops[n].what == sends) {
		h.fault("side %d handles what was not sent to it: %.80q, %v", side, value, err)
		return nil, wire.Malformed
	}
	op := h.ops[n]
	h.mark(&op.started, side, "handles", op, nil)
	h.mu.Lock()
	op.runs++
	h.mu.Unlock()
	defer func() { h.mark(&op.left, side, "has handled", op, nil) }()
	var done <-chan time.Time
	switch op.does {
	case fails:
		return nil, wire.Errorf(wire.Conflict, "%d", op.id)
	case raises:
		panic("oh")
	case sleeps:
		done = time.After(op.takes)
	case blocks:
	default:
		return op.wanted(), nil
	}
	select {
	case <-done:
		return op.wanted(), nil
	case <-ctx.Done():
		h.mark(&op.over, side, "is told to stop", op, ctx.Err())
		return nil, ctx.Err()
	}
}
