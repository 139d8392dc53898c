package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

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
