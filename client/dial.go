package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A NoBrokerError says that no broker answers at a path. Its code is wire.Unavailable.
type NoBrokerError struct {
	Path string // of the socket
	Err  error  // why it cannot be connected to
}

// Error says what to do.
func (e *NoBrokerError) Error() string {
	return fmt.Sprintf("no broker at %s: start one with 'brokerd', or set %s (%v)", e.Path, socket.Variable, e.Err)
}

// Unwrap returns the code and the reason.
func (e *NoBrokerError) Unwrap() []error { return []error{wire.Unavailable, e.Err} }

// A StrangerError says that what listens at a path is no broker, or one that speaks another version of the protocol. Its code is wire.Unsupported or wire.Malformed.
type StrangerError struct {
	Path string // of the socket
	Err  error  // what is wrong with its answer
}

// Error says what to look at.
func (e *StrangerError) Error() string {
	return fmt.Sprintf("what listens at %s is no broker, or one of another version: %v", e.Path, e.Err)
}

// Unwrap returns what is wrong.
func (e *StrangerError) Unwrap() error { return e.Err }

const (
	retryFirst = 5 * time.Millisecond
	retryMost  = 200 * time.Millisecond
	// retryLongest is the most that a refusal can have a client wait before it asks again.
	retryLongest = time.Hour
	// tellAfter is how long a wait lasts at least that the Logger is told of.
	tellAfter = time.Second
)

// Dial opens a session with an endpoint. It repeats its question until it is accepted or refused, or ctx ends: nothing has been executed until then.
// It waits for a broker that is not there yet, unless o.NoWait is set. So it does where it is refused with wire.OverQuota and told after how long to try again:
// it asks again after that time, at least 5 ms and at most 1 h, and up to half of it more. o.Logger is told once of a wait of 1 s or more, if it is not one for the answer to an attempt. Failures are a *wire.Error with the code of the refusal,
// DeadlineExceeded or Canceled, a *StrangerError, or a *NoBrokerError where there was no broker. If ctx has ended while there was none, a failure is both: it has the code
// DeadlineExceeded or Canceled, errors.Is takes it for the context's error, and errors.As finds the *NoBrokerError.
func Dial(ctx context.Context, endpoint string, o Options) (*Session, error) {
	s, err := dial(ctx, endpoint, o)
	if err != nil {
		err = fmt.Errorf("open %s: %w", wire.Printable(endpoint, wire.MaxEndpoint), err)
		_, none := errors.AsType[*NoBrokerError](err)
		if _, stranger := errors.AsType[*StrangerError](err); none || stranger {
			return nil, err
		}
		return nil, wire.AsError(err)
	}
	return s, nil
}

func dial(ctx context.Context, endpoint string, o Options) (*Session, error) {
	path, err := socket.Path(o.Socket)
	if err != nil {
		return nil, err
	}
	open := wire.Open{Endpoint: endpoint, Title: o.Title, Features: append(session.Offer(), wire.FeatureRelay), Limits: o.Limits.OrDefault()}
	if err := open.Validate(); err != nil {
		return nil, err
	}
	began, told := time.Now(), false
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		s, err := attempt(ctx, path, open, o)
		if err == nil {
			return s, nil
		}
		if errors.Is(err, syscall.EAGAIN) { // the broker is there and its queue is full, for a moment
			pause = retryFirst
		}
		wait, again := repeat(err, pause, o.NoWait)
		if !again {
			return nil, err
		}
		if !told && o.Logger != nil && time.Since(began)+wait >= tellAfter && ctx.Err() == nil {
			told = true
			tell(o.Logger, endpoint, path, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, late(ctx.Err(), err)
		}
	}
}

// tell logs what an open waits for.
func tell(log *slog.Logger, endpoint, path string, err error) {
	endpoint = wire.Printable(endpoint, wire.MaxEndpoint)
	if none, ok := errors.AsType[*NoBrokerError](err); ok {
		log.Info("no broker: waiting", "endpoint", endpoint, "socket", none.Path, "err", none.Err)
		return
	}
	log.Info("not opened yet: waiting", "endpoint", endpoint, "socket", path, "code", wire.CodeOf(err), "err", err)
}

// repeat reports whether an attempt that failed is made again, and after how long.
func repeat(err error, pause time.Duration, noWait bool) (wait time.Duration, again bool) {
	wait = pause/2 + rand.N(pause)
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.OverQuota && e.Retry > 0 { // a limit that passes by itself
		wait = min(max(e.Retry, retryFirst), retryLongest)
		return wait + rand.N(wait/2), !noWait
	}
	if _, none := errors.AsType[*NoBrokerError](err); none {
		return wait, !noWait
	}
	return wait, retryable(err)
}

// late is the error of a caller whose time is over while err was still in the way. A *NoBrokerError stays in its chain; its code is that of over.
func late(over, err error) error {
	e := wire.AsError(over)
	if none, ok := errors.AsType[*NoBrokerError](err); ok {
		e.Text = "its time is over"
		return fmt.Errorf("%w, and still: %w", e, none)
	}
	e.Text = "its time is over, and still: " + err.Error()
	return e
}

// retryable reports whether err leaves it open that another attempt succeeds: the connection was lost before it was accepted, or the instance was
// just going.
func retryable(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, wire.Terminating)
}

// attempt asks once.
func attempt(ctx context.Context, path string, open wire.Open, o Options) (*Session, error) {
	if deadline, ok := ctx.Deadline(); ok {
		open.Within = max(1, time.Until(deadline).Milliseconds())
	}
	first, err := wire.NewFrame(wire.KindOpen, 0, open) // before the broker is woken, which then finds it there
	if err != nil {
		return nil, err
	}
	conn, err := connect(path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	routed, accepted, err := ask(conn, first)
	lane := slices.Contains(accepted.Features, wire.FeatureLane)
	if err == nil && lane && !slices.Contains(open.Features, wire.FeatureLane) {
		err = wire.Errorf(wire.Malformed, "the service uses the feature %s, which was not offered", wire.FeatureLane)
	}
	if !stop() || err != nil { // from here on the context says nothing about the connection
		conn.Close()
		return nil, unopened(path, routed.Session != "", cmp.Or(ctx.Err(), err))
	}
	return session.New(conn, session.Config{
		ID: routed.Session, Endpoint: open.Endpoint, Title: open.Title, Opener: true, Peer: routed.Process,
		Handler: o.Handler, Send: accepted.Limits, Receive: open.Limits, Lane: lane, Logger: o.Logger,
	})
}

// unopened says of an error at whom the open has come to nothing: where nothing was answered that a broker answers, it is what listens at the path; behind routed it is the service.
func unopened(path string, routed bool, err error) error {
	e, known := errors.AsType[*wire.Error](err)
	switch {
	case known && !routed && e.Origin == wire.Local && (e.Code == wire.Unsupported || e.Code == wire.Malformed):
		return &StrangerError{Path: path, Err: err}
	case known:
		return err
	}
	who, nor := "the broker at "+path, ", nor from the service" // which says nothing before it accepts, and the broker may have left the answer to it
	if routed {
		who, nor = "the service", ""
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return wire.Errorf(wire.DeadlineExceeded, "no answer from %s in time%s", who, nor)
	}
	return fmt.Errorf("no answer from %s%s: %w", who, nor, err)
}

// connect connects to the broker's socket. That of a Unix socket never waits, so it has no time of its own that could hide what is wrong.
func connect(path string) (*net.UnixConn, error) {
	conn, _, err := socket.Connect(context.Background(), path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, wire.Errorf(wire.NotPermitted, "connect to the broker at %s: %v", path, err)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return nil, &NoBrokerError{Path: path, Err: op.Err}
	}
	return conn, err
}

// ask sends open and reads the answers up to the one that accepts.
func ask(conn *net.UnixConn, open wire.Frame) (routed wire.Routed, accepted wire.Accepted, err error) {
	if err := socket.WriteFirst(conn, open); err != nil {
		return routed, accepted, err
	}
	for {
		f, files, err := socket.ReadFrame(conn)
		socket.Discard(files)
		if err != nil {
			return routed, accepted, err
		}
		switch f.Kind {
		case wire.KindRouted:
			var last wire.Routed
			if err = wire.Unmarshal(f.Body, &last); err == nil {
				routed = last
			}
		case wire.KindAccepted:
			return routed, accepted, wire.Unmarshal(f.Body, &accepted)
		case wire.KindRefused:
			refusal, malformed := wire.DecodeError(f.Body)
			if malformed != nil {
				return routed, accepted, malformed
			}
			if refusal.Origin != wire.Broker { // what an instance says of itself is the peer's here
				refusal.Origin = wire.Peer
			}
			return routed, accepted, refusal
		default:
			err = wire.Errorf(wire.Malformed, "an open is answered with a %v", f.Kind)
		}
		if err != nil {
			return routed, accepted, err
		}
	}
}
