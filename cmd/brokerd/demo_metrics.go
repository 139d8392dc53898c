package main

import (
	"context"
	"path/filepath"

	"github.com/fairlead-dev/fairlead/cmd/internal/metrics"
	"github.com/fairlead-dev/fairlead/services/network"
)

// metrics is where the demo's broker serves its metrics.
func (s *stage) metrics() string { return "unix:" + filepath.Join(s.folder, "m.sock") }

// A tally is what the demo has done that the broker and the network service count: since either was started, or how much of it there is now.
type tally struct {
	opened int // sessions with the network service; the stage knows them
	open   int // of these, now
	lost   int // of these, by kills of the network service
	starts int // of the network service
	kills  int // of the network service
	leased int // leases; the stage knows them
	held   int // of these, now
	ended  int // of these
}

// checkCounted checks that the metrics say what the demo has done, to the unit. The news of what has just been done may still be on its way.
func (s *stage) checkCounted(ctx context.Context, want tally) error {
	patience, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	want.opened, want.leased = int(s.opened.Load()), int(s.leased.Load())
	for {
		text, err := metrics.Scrape(patience, s.metrics())
		if err != nil {
			return err
		}
		values, err := metrics.Parse(text)
		if err != nil {
			return err
		}
		now := tallyOf(values)
		if now != want && pause(patience, probePause) == nil {
			continue
		}
		s.check(now == want, "the metrics agree: sessions opened %d, open %d, lost %d; network service started %d, killed %d; leases allocated %d, held %d, given back %d",
			now.opened, now.open, now.lost, now.starts, now.kills, now.leased, now.held, now.ended)
		if now != want {
			s.check(false, "that is %+v", want)
		}
		return nil
	}
}

// tallyOf is what metrics say.
func tallyOf(v metrics.Values) tally {
	const endpoint, service = `endpoint="` + network.Endpoint + `"`, `service="` + network.Endpoint + `"`
	return tally{
		opened: int(v.Sum("fairlead_broker_opens_total", endpoint, `outcome="ok"`)),
		open:   int(v.Sum("fairlead_broker_sessions_open", endpoint)),
		lost:   int(v.Sum("fairlead_broker_sessions_closed_total", `code="interrupted"`)),
		starts: int(v.Sum("fairlead_broker_service_starts_total", service)),
		kills:  int(v.Sum("fairlead_broker_service_exits_total", service, `how="signal"`)),
		leased: int(v.Sum("fairlead_network_allocations_total", `outcome="ok"`)),
		held:   int(v.Sum("fairlead_network_addresses", `state="held"`)),
		ended:  int(v.Sum("fairlead_network_leases_ended_total")),
	}
}
