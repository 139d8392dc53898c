package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
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
	return c.on(ctx, broker.Endpoint, func(s *client.Session) error { return c.printLog(ctx, s, name) })
}

func (c *command) printLog(ctx context.Context, s *client.Session, name string) error {
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
	if c.terminal() {
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
