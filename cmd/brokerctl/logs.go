package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
)

// serviceLogs prints the end of a service's log as it was written, and on a terminal with what would steer it escaped. A log that is followed has no time but
// that of its opening.
func (c *command) serviceLogs(ctx context.Context, name string) error {
	if c.json {
		return usageError{"--json is no flag of service logs, which prints what was written as it is"}
	}
	if c.lines < 1 {
		return usageError{fmt.Sprintf("--lines %d: want 1 to 10000", c.lines)}
	}
	s, err := c.dial(ctx, broker.Endpoint)
	if err != nil {
		return err
	}
	defer s.Close()
	if c.follow {
		var stop func()
		ctx, stop = c.untilUnwanted(ctx)
		defer stop()
	}
	log, err := client.OpenStreaming[broker.LogChunk, struct{}](ctx, s, broker.MethodLogs, broker.LogsRequest{Name: name, Lines: c.lines, Follow: c.follow})
	if err != nil {
		return err
	}
	defer log.Close()
	if f, ok := c.out.(*os.File); ok && cli.Terminal(f) {
		shown := &escaper{w: c.out}
		return errors.Join(c.copyLog(ctx, log, shown), shown.end())
	}
	return c.copyLog(ctx, log, c.out)
}

// copyLog writes what comes. It ends well when a log that is followed is no longer wanted.
func (c *command) copyLog(ctx context.Context, log *client.Streaming[broker.LogChunk, struct{}], to io.Writer) error {
	for chunk, err := range log.All() {
		if err == nil {
			_, err = to.Write(chunk.Data)
		} else if c.follow && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readerPoll is how often is seen whether anybody still reads what is printed.
const readerPoll = 500 * time.Millisecond

// untilUnwanted returns a context with ctx's values and without its time. It ends at ^C, and when standard output has no reader any more: where nothing more is written,
// no failed write says so. The caller calls stop, which lets the signal go and waits.
func (c *command) untilUnwanted(ctx context.Context) (until context.Context, stop func()) {
	until, release := signal.NotifyContext(context.WithoutCancel(ctx), os.Interrupt)
	var watching sync.WaitGroup
	if f, ok := c.out.(*os.File); ok {
		watching.Go(func() {
			defer release()
			for !abandoned(f) {
				select {
				case <-time.After(readerPoll):
				case <-until.Done():
					return
				}
			}
		})
	}
	return until, func() {
		release()
		watching.Wait()
	}
}

// abandoned reports whether f is a pipe, a socket or a terminal that nobody reads any more.
func abandoned(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} // POLLERR and POLLHUP come without being asked for
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// An escaper writes text for a terminal: but for line feeds and tabs, all that is not printable is escaped, in Go's syntax. What is written to it may be cut
// anywhere.
type escaper struct {
	w    io.Writer
	rest []byte // the beginning of a character that is not there as a whole yet
}

// Write writes what is whole.
func (e *escaper) Write(p []byte) (int, error) {
	all := append(e.rest, p...)
	whole := len(all)
	for n := 1; n < utf8.UTFMax && n <= len(all); n++ {
		if at := len(all) - n; utf8.RuneStart(all[at]) {
			if !utf8.FullRune(all[at:]) {
				whole = at
			}
			break
		}
	}
	e.rest = bytes.Clone(all[whole:])
	if err := e.write(all[:whole]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// end writes what has remained.
func (e *escaper) end() error { return e.write(e.rest) }

func (e *escaper) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	out := make([]byte, 0, len(p))
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, p[0])
		case r == '\n', r == '\t', strconv.IsPrint(r):
			out = append(out, p[:size]...)
		default:
			quoted := strconv.QuoteRune(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		}
		p = p[size:]
	}
	_, err := e.w.Write(out)
	return err
}
