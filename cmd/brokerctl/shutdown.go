package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
)

// gonePoll is how often is seen whether a broker that stops is gone.
const gonePoll = 20 * time.Millisecond

// shutdown has the broker stop, and returns when it has given its socket up.
func (c *command) shutdown(ctx context.Context) error {
	s, err := client.Dial(ctx, broker.Endpoint, c.options())
	if err != nil {
		return err
	}
	status, err := client.Call[broker.Status](ctx, s, broker.MethodShutdown, broker.ShutdownRequest{Leave: c.leave})
	s.Close() // that is what the broker waits for
	if err != nil {
		return err
	}
	for !released(status.Socket) {
		select {
		case <-time.After(gonePoll):
		case <-ctx.Done():
			return fmt.Errorf("the broker (pid %d) stops, and is not gone yet: %w", status.PID, ctx.Err())
		}
	}
	if c.json {
		return c.printJSON("status", status)
	}
	_, err = fmt.Fprintf(c.out, "the broker at %s (pid %d) is stopped\n", status.Socket, status.PID)
	return err
}

// released reports whether no broker has a socket any more. It holds the lock beside it as long as it has the path; a socket that systemd has made stays.
func released(socket string) bool {
	lock, err := os.Open(socket + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return false
	}
	defer lock.Close()
	return unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
}
