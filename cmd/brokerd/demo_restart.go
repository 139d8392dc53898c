package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
)

// killBroker is act 4.
func (s *stage) killBroker(ctx context.Context) error {
	fmt.Printf("The broker SIGKILLed and started again, under %d live containers\n", liveContainers)
	_, before, err := s.startLive(ctx)
	if err != nil {
		return err
	}
	service, err := s.networkService(ctx)
	if err != nil {
		return err
	}
	s.check(service.Instance > 1, "a new network service, instance %d, process %d, was started by the first open", service.Instance, service.PID)
	containers, err := containersOf(before)
	if err != nil {
		return err
	}
	for _, c := range containers {
		defer c.close()
	}
	p, err := s.restartUnderProbe(ctx, before)
	if err != nil {
		return err
	}
	s.check(p.errors == 0 && p.calls > 0, "%d calls on an open session meanwhile, %d errors; the longest time from one reply to the next was %v", p.calls, p.errors, p.longest.Round(100*time.Microsecond))
	if p.err != nil {
		s.check(false, "the first error was: %v", p.err)
	}
	return s.checkUntouched(ctx, service, before, containers)
}

// restartUnderProbe kills the broker and starts it again while a session is being called.
func (s *stage) restartUnderProbe(ctx context.Context, before []network.LeaseInfo) (*probe, error) {
	c, err := s.open(ctx, network.Endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ids := []string{c.ID()}
	for _, l := range before {
		ids = append(ids, l.Session)
	}
	probing, stop := context.WithCancel(ctx)
	p := &probe{}
	var work sync.WaitGroup
	work.Go(func() { p.run(probing, c) })
	defer work.Wait()
	defer stop()

	if err := pause(ctx, probeMargin); err != nil {
		return nil, err
	}
	if err := s.checkCounted(ctx, tally{starts: 2, kills: 1, lost: liveContainers, open: len(ids), held: liveContainers}); err != nil {
		return nil, err
	}
	killed := time.Now()
	s.broker.Process.Kill()
	s.broker.Wait()
	if err := s.startBroker(ctx); err != nil {
		return nil, err
	}
	known, err := s.awaitSessions(ctx, ids)
	if err != nil {
		return nil, err
	}
	s.check(known == len(ids), "%d of %d sessions are in the new broker's list with their old ids, %v after the SIGKILL", known, len(ids), time.Since(killed).Round(time.Millisecond))
	return p, pause(ctx, probeMargin)
}

// awaitSessions waits until the broker lists all sessions with these ids as open, and returns how many it lists in the end.
func (s *stage) awaitSessions(ctx context.Context, ids []string) (known int, err error) {
	for deadline := time.Now().Add(demoPatience); ; {
		list, err := s.sessions(ctx)
		if err != nil {
			return 0, err
		}
		known = 0
		for _, c := range list {
			if c.State == broker.SessionOpen && slices.Contains(ids, c.ID) {
				known++
			}
		}
		if known == len(ids) || time.Now().After(deadline) {
			return known, nil
		}
		if err := pause(ctx, probePause); err != nil {
			return known, err
		}
	}
}

// checkUntouched checks that leases, containers and network service are what they were before.
func (s *stage) checkUntouched(ctx context.Context, service broker.ServiceInfo, before []network.LeaseInfo, containers []container) error {
	leases, err := s.leases(ctx)
	if err != nil {
		return err
	}
	same := 0
	for _, l := range leases {
		if slices.ContainsFunc(before, func(b network.LeaseInfo) bool {
			return b.ID == l.ID && b.Session == l.Session && slices.Equal(b.Addresses, l.Addresses) && l.State == network.StateHeld
		}) {
			same++
		}
	}
	alive := 0
	for _, c := range containers {
		if !c.gone() {
			alive++
		}
	}
	s.check(same == liveContainers && len(leases) == same && alive == liveContainers, "%d leases and %d containers are what they were", same, alive)
	now, err := s.networkService(ctx)
	if err != nil {
		return err
	}
	pids, err := networkServices(s.socket)
	if err != nil {
		return err
	}
	s.check(now.PID == service.PID && now.Instance == service.Instance && slices.Equal(pids, []int{service.PID}),
		"the network service is still instance %d, process %d, and the only one in /proc", now.Instance, now.PID)
	return s.checkCounted(ctx, tally{open: liveContainers, held: liveContainers})
}

// A probe calls a session every few milliseconds. Its fields are read when run has returned.
type probe struct {
	calls   int
	errors  int
	err     error         // the first one
	longest time.Duration // from one reply to the next
}

func (p *probe) run(ctx context.Context, c *client.Session) {
	last := time.Now()
	for ctx.Err() == nil {
		err := p.call(ctx, c)
		if ctx.Err() != nil {
			break
		}
		p.calls++
		if err != nil {
			p.errors++
			p.err = cmp.Or(p.err, err)
		}
		p.longest = max(p.longest, time.Since(last))
		last = time.Now()
		pause(ctx, probePause)
	}
	p.longest = max(p.longest, time.Since(last)) // a call that was not answered at all counts too
}

func (p *probe) call(ctx context.Context, c *client.Session) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	_, err := network.Networks(ctx, c)
	return err
}

// pause waits, unless ctx ends before; then it returns why.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
