package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// unhurried returns the context of a stream: it has the time of --timeout if that was given. Otherwise it has none, and ends at ^C and when standard output
// has no reader any more.
func (c *command) unhurried(ctx context.Context) (context.Context, func()) {
	if c.timed {
		return context.WithCancel(ctx)
	}
	return c.untilUnwanted(ctx)
}

// ended returns the error of a stream: nil if it is only no longer wanted.
func ended(ctx context.Context, to callee, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil
	case err != nil && ctx.Err() != nil:
		return wire.AsError(fmt.Errorf("stream %s: %w", to.method.Name, ctx.Err()))
	case wire.CodeOf(err) == wire.Interrupted:
		return fmt.Errorf("stream %s of %s: %w", to.method.Name, to.session.Endpoint(), err)
	}
	return err
}

// converse makes a streaming call. It sends the values that are on standard input, if the method receives any, and prints those that come, each on a line.
func (c *command) converse(ctx context.Context, to callee) error {
	ctx, stop := c.unhurried(ctx)
	defer stop()
	values, err := client.OpenStreaming[wire.Raw, wire.Raw](ctx, to.session, to.method.Name, to.request)
	if err != nil {
		return err
	}
	defer values.Close()
	if to.piped || to.types.IsEmpty(to.method.In) {
		if err := values.CloseSend(); err != nil {
			return err
		}
		return ended(ctx, to, c.printValues(to, values))
	}
	sending, halt := context.WithCancel(ctx)
	var sender sync.WaitGroup
	var sent error
	sender.Go(func() {
		if sent = c.sendValues(sending, to, values); sent != nil {
			values.Close() // so that nothing more is received
		}
	})
	err = c.printValues(to, values)
	halt()
	sender.Wait()
	if sent != nil {
		return sent
	}
	return ended(ctx, to, err)
}

// sendValues sends what is on standard input, to its end. It fails for what cannot be sent; where the service takes no more, what is received says why.
func (c *command) sendValues(ctx context.Context, to callee, values *client.Streaming[wire.Raw, wire.Raw]) error {
	in := to.types.NewReader(to.method.In, patient{ctx, c.in})
	for n := 1; ; n++ {
		value, err := in.Next()
		switch {
		case err == io.EOF:
			_ = values.CloseSend()
			return nil
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("value %d of standard input: %w", n, err)
		}
		err = values.Send(value)
		switch {
		case errors.Is(err, wire.OverQuota): // it is too long, and has not left
			return fmt.Errorf("value %d of standard input: %w", n, err)
		case err != nil:
			return nil
		}
	}
}

// printValues prints what comes, to its end.
func (c *command) printValues(to callee, values *client.Streaming[wire.Raw, wire.Raw]) error {
	for value, err := range values.All() {
		if err != nil {
			return err
		}
		b, err := to.types.ToJSON(to.method.Out, value)
		if err != nil {
			return err
		}
		if _, err := c.out.Write(append(b, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// exchange opens a raw stream: what is on standard input goes out, and what comes is written as it is; on a terminal with what would steer it escaped.
func (c *command) exchange(ctx context.Context, to callee) error {
	ctx, stop := c.unhurried(ctx)
	defer stop()
	st, err := to.session.OpenStream(ctx, to.method.Name)
	if err != nil {
		return err
	}
	defer st.Close()
	defer context.AfterFunc(ctx, func() { st.Close() })()
	sending, halt := context.WithCancel(ctx)
	var sender sync.WaitGroup
	var sent error
	sender.Go(func() {
		_, err := io.Copy(st, patient{sending, c.in})
		if unread, ok := errors.AsType[*inputError](err); ok && sending.Err() == nil {
			sent = unread
			st.Close()
		} else if err == nil {
			st.CloseWrite()
		} // else the service takes no more, and what is read says why
	})
	if c.terminal() {
		shown := &escaper{w: c.out}
		_, err = io.Copy(shown, st)
		err = errors.Join(err, shown.end())
	} else {
		_, err = io.Copy(c.out, st)
	}
	halt()
	sender.Wait()
	if sent != nil {
		return sent
	}
	return ended(ctx, to, err)
}

// inputPoll is how often is seen whether what is waited for is still wanted.
const inputPoll = 50 * time.Millisecond

// An inputError is why a file could not be read.
type inputError struct{ err error }

func (e *inputError) Error() string { return "read what is to be sent: " + e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// A patient reader reads a file that may never have more, until its context ends.
type patient struct {
	ctx context.Context
	f   *os.File
}

// Read fails with the context's error when that has ended, and with an inputError.
func (p patient) Read(b []byte) (int, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(inputPoll.Milliseconds()))
		if p.ctx.Err() != nil {
			return 0, p.ctx.Err()
		}
		if err == nil && n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			n, err = p.f.Read(b)
		}
		if err != nil && err != io.EOF {
			err = &inputError{err}
		}
		return n, err
	}
}
