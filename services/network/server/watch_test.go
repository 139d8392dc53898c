package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A mirror is a table of leases that is made of what a watcher is told.
type mirror struct {
	t       *testing.T
	done    chan struct{} // closed when the watching is over
	mu      sync.Mutex
	leases  map[string]network.LeaseInfo
	synced  bool
	last    int64
	dropped int64
	told    []network.Change // but for present and synced
	broken  string           // what must not be
	err     error
}

// mirrored watches until the test ends, beginning each change with step.
func mirrored(t *testing.T, s *session.Session, r network.WatchRequest, step func()) *mirror {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m := &mirror{t: t, done: make(chan struct{}), leases: map[string]network.LeaseInfo{}}
	go func() {
		defer close(m.done)
		for c, err := range network.Watch(ctx, s, r) {
			step()
			if err != nil {
				m.mu.Lock()
				m.err = err
				m.mu.Unlock()
				return
			}
			m.take(c)
		}
	}()
	t.Cleanup(func() { cancel(); <-m.done })
	return m
}

func (m *mirror) take(c network.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Seq < m.last && c.Kind != network.ChangePresent && m.synced {
		m.broken = fmt.Sprintf("change %d comes behind %d", c.Seq, m.last)
	}
	switch c.Kind {
	case network.ChangeSynced:
		m.synced = true
	case network.ChangeDropped:
		m.leases, m.synced = map[string]network.LeaseInfo{}, false
		m.dropped += c.Dropped
	case network.ChangeReleased:
		if _, there := m.leases[c.Lease.ID]; m.synced && !there {
			m.broken = fmt.Sprintf("lease %s is released and was not there", c.Lease.ID)
		}
		delete(m.leases, c.Lease.ID)
	case network.ChangeCooling:
	default:
		m.leases[c.Lease.ID] = *c.Lease
	}
	if c.Kind != network.ChangePresent && c.Kind != network.ChangeSynced {
		m.told = append(m.told, c)
	}
	m.last = max(m.last, c.Seq)
}

// shows waits until the mirror is what is listed.
func (m *mirror) shows(want []network.LeaseInfo) {
	m.t.Helper()
	byID := map[string]network.LeaseInfo{}
	for _, l := range want {
		byID[l.ID] = l
	}
	same := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.synced && reflect.DeepEqual(m.leases, byID)
	}
	for deadline := time.Now().Add(patience); !same(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.t.Fatalf("after change %d (synced: %v, %d dropped, %v) a mirror has %v, want %v", m.last, m.synced, m.dropped, m.err,
				slices.Sorted(maps.Keys(m.leases)), slices.Sorted(maps.Keys(byID)))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != "" {
		m.t.Error(m.broken)
	}
}

// tells waits until the mirror was told of something, and returns what it was told since a number of changes.
func (m *mirror) tells(from int, kinds ...string) []network.Change {
	m.t.Helper()
	var told []network.Change
	until(m.t, fmt.Sprintf("the watcher is told of %v", kinds), func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		told = slices.Clone(m.told[min(from, len(m.told)):])
		return len(told) >= len(kinds)
	})
	for i, kind := range kinds {
		if told[i].Kind != kind {
			m.t.Fatalf("change %d is %s (%s), want %s", told[i].Seq, told[i].Kind, told[i].Why, kind)
		}
	}
	return told
}

// churn has clients allocate and release, each some times, and leaves what they hold at the end.
func churn(t *testing.T, path string, clients, times int) {
	t.Helper()
	var working sync.WaitGroup
	for i := range clients {
		s := open(t, path)
		working.Go(func() {
			var held []*network.Lease
			for n := range times {
				l, err := network.Allocate(within(t, patience), s, network.Request{Hostname: fmt.Sprintf("host-%d-%d", i, n)})
				if err != nil {
					t.Error(err)
					return
				}
				if held = append(held, l); n%3 != 0 || len(held) > 3 {
					if err := held[0].Release(within(t, patience)); err != nil {
						t.Error(err)
					}
					held = held[1:]
				}
			}
		})
	}
	working.Wait()
}

func TestAMirrorOfWhatAWatcherIsToldIsTheTable(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16")})
	c := open(t, s.path)
	for range 200 {
		allocate(t, c, network.Request{})
	}
	early := mirrored(t, open(t, s.path), network.WatchRequest{}, func() {})
	var late *mirror
	var joining sync.WaitGroup
	joining.Go(func() {
		until(t, "some is allocated", func() bool { early.mu.Lock(); defer early.mu.Unlock(); return len(early.told) > 100 })
		late = mirrored(t, open(t, s.path), network.WatchRequest{Network: "default"}, func() {}) // in the midst of it
	})
	churn(t, s.path, 32, 25)
	joining.Wait()
	want := list(t, c)
	if len(want) < 232 {
		t.Fatalf("there are %d leases", len(want))
	}
	early.shows(want)
	late.shows(want)
}

func TestAWatcherWhoStopsReadingDelaysNobodyAndIsToldWhatItMisses(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16")})
	reading := make(chan struct{})
	m := mirrored(t, open(t, s.path), network.WatchRequest{}, func() { <-reading })
	resume := sync.OnceFunc(func() { close(reading) })
	t.Cleanup(resume)
	c := open(t, s.path)
	allocate(t, c, network.Request{Hostname: "stays"})
	began := time.Now()
	var working sync.WaitGroup
	for range 5 {
		working.Go(func() {
			for range 5 {
				holder := open(t, s.path)
				for range 200 { // and as many changes again when the session ends: in all more than are kept and may be on their way
					if _, err := network.Allocate(within(t, patience), holder, network.Request{}); err != nil {
						t.Error(err)
						return
					}
				}
				holder.Close()
			}
		})
	}
	working.Wait()
	if d := time.Since(began); d > 2*patience {
		t.Errorf("with a watcher who does not read, 5,000 leases take %v", d)
	}
	resume()
	m.shows(list(t, c))
	if m.dropped == 0 {
		t.Error("it is not told that changes are missing")
	}
	if told, reach := changes(t, s.path, network.WatchRequest{Since: 1}); len(told) != 4096 || !reach.Equal(told[0].At.Time()) {
		t.Errorf("of all that %d are kept, since %v", len(told), reach)
	}
}

func TestAWatcherIsToldWhatBecomesOfALeaseAndWhy(t *testing.T) {
	leavesNothing(t)
	n := networks(t, "default=10.9.0.0/24", "other=10.8.0.0/24")
	n[0].Quarantine = time.Hour
	s := start(t, server.Config{Networks: n})
	m := mirrored(t, open(t, s.path), network.WatchRequest{Network: "default"}, func() {})
	m.shows(nil)
	c := open(t, s.path)
	allocate(t, c, network.Request{Network: "other"}) // is not asked for
	seen := 0
	step := func(why string, kinds ...string) []network.Change {
		t.Helper()
		told := m.tells(seen, kinds...)
		seen += len(kinds)
		for _, c := range told {
			if c.Why != "" && c.Why != why {
				t.Errorf("change %d, %s: %s, want %s", c.Seq, c.Kind, c.Why, why)
			}
		}
		return told
	}
	release(t, allocate(t, c, network.Request{Hostname: "web"}))
	told := step(network.WhyReleased, network.ChangeAllocated, network.ChangeReleased, network.ChangeCooling)
	if l := told[1].Lease; told[0].Lease.Hostname != "web" || told[0].Lease.State != network.StateHeld || l.ID != told[0].Lease.ID || l.State != network.StateOver {
		t.Errorf("it is told %+v and %+v", told[0].Lease, l)
	}
	if left := time.Until(told[2].Until.Time()); left <= 0 || left > time.Hour {
		t.Errorf("the address cools for %v, want an hour", left)
	}
	second := open(t, s.path)
	allocate(t, second, network.Request{})
	second.Close()
	step(network.WhySession, network.ChangeAllocated, network.ChangeReleased, network.ChangeCooling)

	h := run(t, "holder", s.path)
	w := h.linger("linger")
	h.allocate(order{Witness: w.PID()})
	h.kill()
	step(network.WhySession, network.ChangeAllocated, network.ChangeDying)
	h.lifes.Close() // the witness ends
	step(network.WhyWitness, network.ChangeReleased, network.ChangeCooling)

	h = run(t, "holder", s.path)
	a := h.allocate(order{Witness: h.linger("linger").PID()})
	if e := h.order(order{Do: "release", Lease: a.Lease}).Error; e != nil {
		t.Fatal(e)
	}
	step(network.WhyReleased, network.ChangeAllocated, network.ChangeDying)
	if e := h.order(order{Do: "release", Lease: a.Lease}).Error; e == nil || e.Code != wire.NotFound { // as one whose reply came too late
		t.Errorf("a second release of a lease that a witness keeps: %v, want %s", e, wire.NotFound)
	}
	if err := network.Release(within(t, patience), c, a.Lease); err != nil {
		t.Error(err)
	}
	step(network.WhyOperator, network.ChangeReleased, network.ChangeCooling)
}

func TestALeaseIsFoundByItsIDItsAddressesAndItsNames(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "a=10.9.0.0/24,fd00:9::/64", "b=10.8.0.0/24")})
	c := open(t, s.path)
	first := allocate(t, c, network.Request{Network: "a", Hostname: "web", Aliases: []string{"www"}})
	second := allocate(t, c, network.Request{Network: "b", Hostname: "web"})
	for _, test := range []struct {
		network, name string
		want          string
	}{
		{"", first.ID, first.ID}, {"a", first.ID, first.ID}, {"", "10.9.0.2", first.ID}, {"", "fd00:9::2", first.ID}, {"", "10.9.0.2/24", first.ID}, {"", "fd00:9::2/64", first.ID}, {"", "FD00:9:0::2", first.ID}, {"", "WWW.", first.ID},
		{"a", "web", first.ID}, {"b", "web", second.ID}, {"", "web", string(wire.Conflict)}, {"b", first.ID, string(wire.NotFound)}, {"b", "10.9.0.2", string(wire.NotFound)},
		{"", "10.9.0.3", string(wire.NotFound)}, {"", "db", string(wire.NotFound)}, {"c", "web", string(wire.NotFound)}, {"", "a b", string(wire.Malformed)}, {"", "10.9.0.2/33", string(wire.Malformed)}, {"", "", string(wire.Malformed)},
	} {
		r, err := network.ByName(test.network, test.name)
		var got network.LeaseInfo
		if err == nil {
			got, err = network.Inspect(within(t, patience), c, r)
		}
		if err != nil && !errors.Is(err, wire.Code(test.want)) || err == nil && got.ID != test.want {
			t.Errorf("%q on %q is %s, %v, want %s", test.name, test.network, got.ID, err, test.want)
		}
	}
}

func TestTheNetworksAreReadAnewWhenAnOperatorSaysSo(t *testing.T) {
	leavesNothing(t)
	type loaded struct {
		networks []server.Network
		err      error
	}
	loads := make(chan loaded, 1)
	j := &journal{}
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), Logger: j.logger(), Load: func() ([]server.Network, server.Limits, error) {
		next := <-loads
		return next.networks, server.Limits{}, next.err
	}})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{})
	for range 2 { // the second time nothing has changed
		loads <- loaded{networks: networks(t, "default=10.9.0.0/16")}
		if done, err := network.Reload(within(t, patience), c); err != nil || done.Networks != 1 {
			t.Errorf("a reload says %+v, %v", done, err)
		}
	}
	if lines := j.with("networks reloaded: there are 1"); len(lines) != 1 {
		t.Errorf("one change is logged as %q", lines)
	}
	if infos, err := network.Networks(within(t, patience), c); err != nil || infos[0].Prefixes[0] != "10.9.0.0/16" {
		t.Errorf("the networks are %+v, %v", infos, err)
	}
	loads <- loaded{networks: networks(t, "default=10.8.0.0/16")}
	_, err := network.Reload(within(t, patience), c)
	if e := wire.AsError(err); e == nil || e.Code != wire.Conflict || e.Holder == nil || e.Holder.Lease != l.ID {
		t.Errorf("a change that would orphan a lease: %v", err)
	}
	loads <- loaded{err: errors.New("file:1: x: unknown key\nfile:2: y: unknown key")}
	if _, err := network.Reload(within(t, patience), c); !errors.Is(err, wire.Malformed) {
		t.Errorf("a file with problems: %v", err)
	}
	none := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	if _, err := network.Reload(within(t, patience), open(t, none.path)); !errors.Is(err, wire.Unsupported) {
		t.Errorf("nothing to read: %v", err)
	}
}

// changes is what a watcher is told who wants no list, up to what is kept, and how far back that goes.
func changes(t *testing.T, path string, r network.WatchRequest) (told []network.Change, reach time.Time) {
	t.Helper()
	r.NoList = true
	for c, err := range network.Watch(within(t, patience), open(t, path), r) {
		switch {
		case err != nil:
			t.Fatal(err)
		case c.Kind == network.ChangeSynced:
			return told, c.At.Time()
		}
		told = append(told, c)
	}
	t.Fatal("the watch has ended")
	return nil, reach
}

func TestWhoWantsNoListIsToldTheChangesThatAreKept(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16", "other=10.8.0.0/24")})
	c := open(t, s.path)
	before := time.Now()
	release(t, allocate(t, c, network.Request{Hostname: "first"}))
	allocate(t, c, network.Request{Network: "other"})
	told, reach := changes(t, s.path, network.WatchRequest{Since: 1})
	if reach.After(before) || len(told) != 3 || told[0].Kind != network.ChangeAllocated || told[0].Lease.Hostname != "first" || told[1].Kind != network.ChangeReleased {
		t.Errorf("while nobody watched, %+v is kept since %v", told, reach)
	}
	if some, _ := changes(t, s.path, network.WatchRequest{Since: told[1].At}); len(some) != 2 || some[0].Seq != told[1].Seq {
		t.Errorf("since change %d is told %+v", told[1].Seq, some)
	}
	if some, _ := changes(t, s.path, network.WatchRequest{Since: 1, Network: "other"}); len(some) != 1 || some[0].Lease.Network != "other" {
		t.Errorf("of one network is told %+v", some)
	}
	if some, _ := changes(t, s.path, network.WatchRequest{}); len(some) != 0 {
		t.Errorf("who asks for no time is told %+v", some)
	}
	for r, code := range map[network.WatchRequest]wire.Code{
		{Since: 1}: wire.Malformed, {Since: -1, NoList: true}: wire.Malformed, {Network: "none", NoList: true}: wire.NotFound,
	} {
		for _, err := range network.Watch(within(t, patience), c, r) {
			if !errors.Is(err, code) {
				t.Errorf("%+v: %v, want %s", r, err, code)
			}
		}
	}
}

func TestTheLeasesOfOneSessionAreListedAlone(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	a, b := open(t, s.path), open(t, s.path)
	mine := allocate(t, a, network.Request{Hostname: "mine"})
	allocate(t, b, network.Request{Hostname: "theirs"})
	got, err := network.List(within(t, patience), b, network.ListRequest{Session: s.session(0).ID()})
	if err != nil || len(got) != 1 || got[0].ID != mine.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := network.List(within(t, patience), b, network.ListRequest{Session: "x"}); !errors.Is(err, wire.Malformed) {
		t.Errorf("a session that is none: %v", err)
	}
}
