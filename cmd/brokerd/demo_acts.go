package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
)

const (
	runtimesAtOnce = 4                      // of the first act
	probePause     = 2 * time.Millisecond   // between two calls
	probePatience  = time.Second            // for one call
	probeMargin    = 250 * time.Millisecond // of probing before and after the broker's restart
	exitLost       = 69                     // of a runtime whose network was lost: see runner.ExitStatus
)

// killRuntimes is act 1.
func (s *stage) killRuntimes(ctx context.Context) error {
	fmt.Printf("%d containers on %s, each runtime SIGKILLed as soon as it has its lease\n", s.containers, s.prefix)
	c, err := s.open(ctx, network.Endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	seen, most, err := s.eachKilled(ctx, c)
	if err != nil {
		return err
	}
	last := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, demoPatience, fmt.Errorf("leases are still there %v after the last SIGKILL", demoPatience))
	defer cancel()
	if err := awaitNoLease(ctx, c); err != nil {
		return err
	}
	empty := time.Since(last)
	networks, err := network.Networks(ctx, c)
	if err != nil {
		return err
	}
	n := networks[0]
	s.check(len(seen) == s.containers, "%d of %d got an address, %d different ones of %d; at most %d leases at a time", len(seen), s.containers, different(seen), n.Total, most)
	s.check(n.Free == n.Total, "the lease list is empty %v after the last SIGKILL; %d of %d addresses are free", empty.Round(time.Millisecond), n.Free, n.Total)
	return nil
}

// eachKilled runs all containers of act 1. It returns the address of each, and how many leases there were at most, by the lease list.
func (s *stage) eachKilled(ctx context.Context, c *client.Session) (seen []string, most int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var mu sync.Mutex
	var work sync.WaitGroup
	for range runtimesAtOnce {
		work.Go(func() {
			for n := range numbers {
				address, leases, err := s.leaseAndKill(ctx, c, fmt.Sprintf("doomed-%d", n))
				if err != nil {
					cancel(err)
					continue
				}
				mu.Lock()
				seen, most = append(seen, address), max(most, leases)
				progress(len(seen), s.containers, "containers")
				mu.Unlock()
			}
		})
	}
	for n := 1; n <= s.containers && ctx.Err() == nil; n++ {
		numbers <- n
	}
	close(numbers)
	work.Wait()
	return seen, most, context.Cause(ctx)
}

// leaseAndKill starts a runtime, takes its address from the lease list, and kills it.
func (s *stage) leaseAndKill(ctx context.Context, c *client.Session, name string) (address string, leases int, err error) {
	r, err := s.startRuntime(ctx, name)
	if err != nil {
		return "", 0, err
	}
	defer r.kill()
	if err := r.await(wordLeased); err != nil {
		return "", 0, err
	}
	list, err := network.List(ctx, c, network.ListRequest{})
	if err != nil {
		return "", 0, err
	}
	for _, l := range list {
		if l.Holder.PID == r.cmd.Process.Pid && l.Hostname == name {
			return l.Addresses[0], len(list), nil
		}
	}
	return "", 0, fmt.Errorf("%s has leased an address and is not in the lease list", name)
}

func different(addresses []string) int {
	return len(slices.Compact(slices.Sorted(slices.Values(addresses))))
}

// awaitNoLease waits until the lease list is empty.
func awaitNoLease(ctx context.Context, c *client.Session) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		list, err := network.List(ctx, c, network.ListRequest{})
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		if len(list) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// showTables is act 2.
func (s *stage) showTables(ctx context.Context) error {
	fmt.Printf("%d live containers\n", liveContainers)
	sessions, leases, err := s.startLive(ctx)
	if err != nil {
		return err
	}
	return printTables(sessions, leases)
}

// startLive starts the live containers and checks that lists and /proc agree on them.
func (s *stage) startLive(ctx context.Context) ([]broker.Session, []network.LeaseInfo, error) {
	s.live = nil
	for n := range liveContainers {
		r, err := s.startRuntime(ctx, fmt.Sprintf("web-%d", n+1))
		if err != nil {
			return nil, nil, err
		}
		s.live = append(s.live, r)
	}
	for n, r := range s.live {
		if err := r.await(wordRunning); err != nil {
			return nil, nil, err
		}
		progress(n+1, liveContainers, "containers")
	}
	leases, err := s.leases(ctx)
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	for _, l := range leases {
		ids = append(ids, l.Session)
	}
	if _, err := s.awaitSessions(ctx, ids); err != nil { // the broker hears of them a moment later
		return nil, nil, err
	}
	sessions, err := s.sessions(ctx)
	if err != nil {
		return nil, nil, err
	}
	return sessions, leases, s.checkLive(sessions, leases)
}

func (s *stage) checkLive(sessions []broker.Session, leases []network.LeaseInfo) error {
	var addresses []string
	held := 0
	for _, l := range leases {
		addresses = append(addresses, l.Addresses[0])
		if l.State == network.StateHeld && slices.ContainsFunc(sessions, func(c broker.Session) bool {
			return c.ID == l.Session && c.State == broker.SessionOpen && c.Client.PID == l.Holder.PID
		}) {
			held++
		}
	}
	s.check(held == liveContainers && len(leases) == held && different(addresses) == held,
		"%d leases of %d different addresses, %d of them held by an open session of the broker's list", len(leases), different(addresses), held)
	containers, err := containersOf(leases)
	if err != nil {
		return err
	}
	alive, processes := 0, 0
	for _, c := range containers {
		if !c.gone() {
			alive++
		}
		processes += len(c)
		c.close()
	}
	s.check(alive == liveContainers, "%d containers live in /proc, with %d processes", alive, processes)
	return nil
}

// killNetworkService is act 3.
func (s *stage) killNetworkService(ctx context.Context) error {
	fmt.Println("The network service SIGKILLed under them: each runtime ends its container")
	service, err := s.networkService(ctx)
	if err != nil {
		return err
	}
	leases, err := s.leases(ctx)
	if err != nil {
		return err
	}
	containers, err := containersOf(leases)
	if err != nil {
		return err
	}
	for _, c := range containers {
		defer c.close()
	}
	if err := s.checkCounted(ctx, tally{starts: 1, open: liveContainers, held: liveContainers, ended: s.containers}); err != nil {
		return err
	}
	killed, err := killProcess(service.PID)
	if err != nil {
		return err
	}
	s.leased.Store(0)
	patience, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	times := awaitGone(patience, containers, killed)
	s.check(len(times) == liveContainers, "%d containers are gone from /proc%s", len(times), spread(times))
	defer context.AfterFunc(patience, func() {
		for _, r := range s.live {
			r.cmd.Process.Kill()
		}
	})()
	lost := 0
	for _, r := range s.live {
		r.cmd.Wait()
		if r.cmd.ProcessState.ExitCode() == exitLost {
			lost++
		}
	}
	s.check(lost == liveContainers, "%d runtimes exited with %d, which says that a network was lost", lost, exitLost)
	return s.checkCounted(ctx, tally{starts: 1, kills: 1, lost: liveContainers})
}

// killProcess kills a process, and returns the moment before.
func killProcess(pid int) (time.Time, error) {
	h, err := process.Open(pid)
	if err != nil {
		return time.Time{}, err
	}
	defer h.Close()
	return time.Now(), h.Signal(syscall.SIGKILL)
}

// spread says what times there are in a sorted list.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return ""
	}
	ms := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf(": the first after %v, the median after %v, the last after %v", ms(times[0]), ms(times[len(times)/2]), ms(times[len(times)-1]))
}
