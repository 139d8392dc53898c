package main

import (
	"context"
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
)

func (c *command) status(ctx context.Context) error {
	s, err := ask[broker.Status](ctx, c, broker.MethodStatus, nil)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("status", s)
	}
	sessions, denied := fmt.Sprintf("%d open, %d closed since the start", s.Open, s.Closed), fmt.Sprintf("%d, over quota %d", s.Denied, s.OverQuota)
	services := fmt.Sprintf("%d, instances %d", s.Services, s.Instances)
	if s.Skipped > 0 {
		services += "; " + skipped(s.Skipped)
	}
	now := meter{time.Now(), map[string][]int64{"": {int64(s.Open) + s.Closed, s.Closed, s.Denied, s.OverQuota}}}
	if rate := now.rates(c.before, ""); rate != nil {
		sessions += fmt.Sprintf("; %.1f opened and %.1f closed a second", rate[0], rate[1])
		denied += fmt.Sprintf("; %.1f and %.1f a second", rate[2], rate[3])
	}
	c.before = now
	return c.printPairs([][2]string{
		{"broker", fmt.Sprintf("%s, pid %d, uid %d, up %s", s.Version, s.PID, s.UID, time.Since(s.StartedAt.Time()).Round(time.Second))},
		{"socket", s.Socket}, {"services", services}, {"sessions", sessions}, {"denied", denied},
	})
}
