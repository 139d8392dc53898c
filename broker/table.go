package broker

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

const (
	// keptClosed is how many closed sessions the table keeps; older ones are forgotten first.
	keptClosed = 1000
	// maxLive is how many open sessions instances may tell of: those that this broker has not handed over, as after its start, and of these each process as one service
	// mostTold, or leastTold if others than root or the broker's user run it and the broker has not started it. More are not listed.
	maxLive   = 100_000
	mostTold  = 10_000
	leastTold = 1000
	// openingMost is how long a hand-over may be on its way before it counts as lost, and is charged to nobody any more.
	openingMost = 5 * time.Minute
)

// lostOnTheWay is the end of a hand-over that no instance has told of.
var lostOnTheWay = wire.End{Code: wire.Unavailable, Origin: wire.Broker, Text: "no instance has taken it"}

// A table holds the live sessions and the last closed ones. An entry goes from opening to open to closed, and never back.
type table struct {
	events   *events       // is told of what opens and closes
	ends     *count.Each   // of the closed, by code
	takeWait time.Duration // for a hand-over to be taken up
	lost     time.Duration // openingMost
	quotas   *quota.Ledger // of sessions, and of descriptors while these are opening

	mu     sync.Mutex
	live   map[string]*entry
	told   map[lineage]int    // how many of these were not handed over here
	closed map[string]Session // by id
	order  []string           // of the closed, oldest first
	total  int64              // closed since the broker started
}

type entry struct {
	Session
	instance *instance
	told     bool          // it was not handed over here, but by an earlier broker
	visit    bool          // it is the broker's own, of which nobody is told
	charged  bool          // to its client
	taken    chan struct{} // closed when it is no longer opening; nil: it is not, or it is closed
}

// takeLocked notes that the session is no longer opening.
func (t *table) takeLocked(e *entry) {
	if e.taken != nil {
		close(e.taken)
		e.taken = nil
		t.quotas.Discharge(e.Client.UID, quota.Descriptors)
		e.instance.opening--
	}
}

// leaveLocked takes a session out of those that live.
func (t *table) leaveLocked(e *entry) {
	t.takeLocked(e)
	delete(t.live, e.ID)
	if e.charged {
		e.charged = false
		t.quotas.Discharge(e.Client.UID, quota.Sessions)
	}
}

// event returns an event of the session.
func (e *entry) event(kind string) Event {
	told := Event{Kind: kind, Endpoint: e.Endpoint, Session: e.ID, Title: e.Title, PID: e.Instance.PID, Client: &wire.Process{}}
	*told.Client = e.Client
	if e.instance != nil {
		told.Service, told.Instance = e.instance.service, e.instance.number
	}
	return told
}

func newTable(told *events, ends *count.Each, quotas *quota.Ledger) *table {
	return &table{
		events: told, ends: ends, quotas: quotas, takeWait: takeWait, lost: openingMost, live: map[string]*entry{}, told: map[lineage]int{}, closed: map[string]Session{},
	}
}

// begin enters a session that is being handed over, and for which its client was charged a session and a descriptor. The channel is closed when it is accepted, refused or lost.
func (t *table) begin(s Session, i *instance) (taken <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.State = SessionOpening
	e := &entry{Session: s, instance: i, charged: true, taken: make(chan struct{})}
	t.live[s.ID] = e
	t.handedLocked(i, s.OpenedAt.Time())
	return e.taken
}

// visit is begin for a session of the broker's own. It returns false, and enters none, while the instance has not taken another.
func (t *table) visit(s Session, i *instance) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked()
	for _, e := range t.live {
		if e.visit && e.instance == i && e.State == SessionOpening {
			return false
		}
	}
	s.State = SessionOpening
	t.live[s.ID] = &entry{Session: s, instance: i, visit: true}
	return true
}

// answered notes that an instance has taken a visit, or has refused it: its news of that are on their way.
func (t *table) answered(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.live[id]; e != nil {
		e.State = SessionOpen
	}
}

// drop removes a session that was never handed over.
func (t *table) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.live[id]; e != nil {
		t.leaveLocked(e)
	}
}

// idle returns how many sessions of an instance are live, and when the last one that is not has ended.
func (t *table) idle(i *instance) (live int, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.live {
		if e.instance == i {
			live++
		}
	}
	return live, i.lastEnd
}

// hasHeard reports whether an instance has told of any session; nil has not.
func (t *table) hasHeard(i *instance) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return i != nil && i.heard
}

// firstOpening returns the client of the session that has been opening for the longest on an instance of a service, or nil.
func (t *table) firstOpening(service string) *wire.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	var first *entry
	for _, e := range t.live {
		if e.State == SessionOpening && !e.visit && e.instance.service == service && (first == nil || e.OpenedAt < first.OpenedAt) {
			first = e
		}
	}
	if first == nil {
		return nil
	}
	return &first.Client
}

// open returns the short ids of at most n open sessions of a service.
func (t *table) open(service string, n int) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.live {
		if e.instance.service == service && len(ids) < n {
			ids = append(ids, session.ShortID(e.ID))
		}
	}
	return ids
}

// update takes what an instance tells of a session of its own: one that was handed to it, or, after a broker's restart, one that nobody has told of. What it
// tells of others' is ignored. It returns false if the session is not listed because there are too many.
func (t *table) update(info wire.SessionInfo, i *instance) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.live[info.ID]
	switch {
	case e != nil && !e.instance.same(i), e == nil && !slices.Contains(i.endpoints, info.Endpoint):
		return true
	case e == nil && info.End == nil && (len(t.live) >= maxLive || t.told[i.lineage()] >= i.mostTold):
		return false
	case e == nil:
		e = &entry{told: true, Session: Session{ID: info.ID, Endpoint: info.Endpoint, Title: info.Title, OpenedAt: wire.Time(info.OpenedAt), Client: info.Client, Instance: i.process}}
	}
	i.heard = true
	if e.taken != nil {
		e.instance.progress = time.Now()
	}
	if info.End != nil {
		t.closeLocked(e, *info.End, wire.Time(info.ClosedAt))
		return true
	}
	if t.reopenLocked(info.ID) {
		if e.State == SessionOpening && !e.visit { // else it was open before, here or at an earlier broker
			t.events.add(e.event(EventSessionOpened))
		}
		t.takeLocked(e)
		e.State, e.instance = SessionOpen, i
		if t.live[info.ID] == nil {
			t.told[i.lineage()]++
			e.charged = i.believed
		}
		if t.live[info.ID] == nil && e.charged {
			t.quotas.Note(e.Client.UID, quota.Sessions)
		}
		t.live[info.ID] = e
	}
	return true
}

// reopenLocked reports whether a session may be open: it is not known to be closed, or only because it was not heard of, as of an instance that was stopped
// for a time.
func (t *table) reopenLocked(id string) bool {
	s, closed := t.closed[id]
	if closed && *s.End != lostOnTheWay {
		return false
	}
	delete(t.closed, id)
	return true
}

// move gives the sessions of one registration to the next one of the same process.
func (t *table) move(from, to *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.live {
		if e.instance != from {
			continue
		}
		e.instance = to
		if e.taken != nil {
			from.opening--
			t.handedLocked(to, time.Now())
		}
	}
}

// end closes all sessions of an instance that is gone.
func (t *table) end(i *instance, end wire.End) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.live {
		if e.instance == i {
			t.closeLocked(e, end, wire.At(time.Now()))
		}
	}
}

func (t *table) closeLocked(e *entry, end wire.End, at wire.Time) {
	if e.told && t.live[e.ID] == e {
		if l := e.instance.lineage(); t.told[l] > 1 {
			t.told[l]--
		} else {
			delete(t.told, l)
		}
	}
	t.leaveLocked(e)
	if e.visit {
		return
	}
	if e.instance != nil {
		e.instance.lastEnd = time.Now()
	}
	if _, twice := t.closed[e.ID]; twice {
		return
	}
	s := e.Session
	s.State, s.ClosedAt, s.End = SessionClosed, at, &end
	t.closed[s.ID] = s
	closed := e.event(EventSessionClosed)
	closed.End = &wire.End{Code: end.Code, Origin: end.Origin, Text: wire.Cut(end.Text, maxEventText)}
	t.events.add(closed)
	t.ends.Add(string(end.Code))
	t.order = append(t.order, s.ID)
	t.total++
	for len(t.order) > keptClosed {
		delete(t.closed, t.order[0])
		t.order = t.order[1:]
	}
}

// find returns the session whose id has this prefix, and its instance while it lives. It fails with wire.NotFound, wire.Conflict if several have it, or
// wire.Malformed.
func (t *table) find(prefix string) (Session, *instance, error) {
	if prefix == "" || strings.Trim(prefix, "0123456789abcdef") != "" {
		return Session{}, nil, wire.Errorf(wire.Malformed, "session id %q: want hexadecimal digits, as 'session list' shows them", wire.Printable(prefix, 64))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []Session
	var owner *instance
	for _, e := range t.live {
		if strings.HasPrefix(e.ID, prefix) {
			found, owner = append(found, e.Session), e.instance
		}
	}
	for _, s := range t.closed {
		if strings.HasPrefix(s.ID, prefix) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return Session{}, nil, wire.Errorf(wire.NotFound, "no session %s, open or among the last %d closed", prefix, keptClosed)
	case 1:
		if found[0].State == SessionClosed {
			owner = nil
		}
		return found[0], owner, nil
	}
	return Session{}, nil, wire.Errorf(wire.Conflict, "session id %s is the beginning of %d ids: give more of it", prefix, len(found))
}

// expireLocked closes the hand-overs that no instance has told of: they were lost on their way.
func (t *table) expireLocked() {
	for _, e := range t.live {
		if e.State == SessionOpening && time.Since(e.OpenedAt.Time()) > t.lost {
			t.closeLocked(e, lostOnTheWay, wire.At(time.Now()))
		}
	}
}

// size returns how many sessions are live.
func (t *table) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live)
}

// count returns how many sessions are live, of one service if i is given, and how many have closed.
func (t *table) count(i *instance) (live int, closed int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.live {
		if i == nil || e.instance == i {
			live++
		}
	}
	return live, t.total
}

// countBy returns how many sessions are live, but for the broker's own, by what name makes of their endpoints.
func (t *table) countBy(name func(endpoint string) string) map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	live := map[string]int{}
	for _, e := range t.live {
		if !e.visit {
			live[name(e.Endpoint)]++
		}
	}
	return live
}
