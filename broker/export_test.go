package broker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/wire"
)

// Health is a service's health, for tests: it is given all times.
type Health struct{ health }

func (h *Health) Began(now time.Time) { h.began(now) }

// Ends notes the end of what was started last: a failure or not.
func (h *Health) Ends(now time.Time, throttle time.Duration, failure bool) {
	switch {
	case failure:
		h.failed(now, throttle, "it failed")
	case now.Sub(h.LastStart) >= quick(throttle):
		h.lasted()
		h.ended()
	default:
		h.ended()
	}
}

func (h *Health) IsSuspended(now time.Time) bool         { return h.suspended(now) }
func (h *Health) Reset()                                 { h.reset() }
func (h *Health) Recalled(now time.Time)                 { h.recalled(now) }
func (h *Health) Next(throttle time.Duration) time.Time  { return h.next(throttle) }
func (h *Health) Again(throttle time.Duration) time.Time { return h.again(throttle) }

// JoinOrder has opens join a queue, those with first as ones that had their turn, and returns by their numbers in which order they are in it.
func JoinOrder(first ...bool) (order []int) {
	s := &service{life: &life{}}
	numbers := map[*waiter]int{}
	for n, first := range first {
		w, _ := s.joinLocked(context.Background(), party{}, "", first)
		numbers[w] = n
	}
	for _, w := range s.queue {
		order = append(order, numbers[w])
	}
	return order
}

// Callers returns of how many sessions with its own endpoint the broker knows the client.
func (b *Broker) Callers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.callers)
}

// RewriteRecord reads the record of a service, has its health recalled, and writes what it has read. It returns the number of the last instance, and why what is
// there is of no use.
func RewriteRecord(path string) (number int64, useless, err error) {
	f := recordFile{path: path}
	r, useless, err := f.read()
	if err != nil || useless != nil {
		return 0, useless, err
	}
	r.Health.recalled(time.Now())
	r.Health.next(time.Second)
	return r.Number, nil, f.write(func() record { return r })
}

// Has returns how much of a kind a user has.
func (b *Broker) Has(uid uint32, k quota.Kind) int { return b.quotas.Use(uid, k) }

// SetHung sets how long an instance has to take a hand-over up, and then to answer. It is for a broker that does not serve yet.
func (b *Broker) SetHung(take, answer time.Duration) { b.table.takeWait, b.answers = take, answer }

// SetLost sets how long a hand-over may be on its way. It is for a broker that does not serve yet.
func (b *Broker) SetLost(after time.Duration) { b.table.lost = after }

// CutControl loses the control connection of the instance that serves an endpoint, on the broker's side.
func (b *Broker) CutControl(endpoint string) {
	b.mu.Lock()
	i := b.endpoints[endpoint]
	b.mu.Unlock()
	i.control.Abort(wire.End{Code: wire.Internal, Origin: wire.Local})
}

// Mistake enters a process's number as that of the program that the broker has started for a service, as if it had been that one's and is another's by now.
func (b *Broker) Mistake(pid int, service string) {
	s := b.service(service)
	s.mu.Lock()
	l := s.life
	s.mu.Unlock()
	b.programs.mu.Lock()
	defer b.programs.mu.Unlock()
	b.programs.byPID[pid] = &program{life: l}
}

// OpenDoors lets users in one after the other where there are doors for so many beside a path, and returns the names of the sockets that there are then.
func OpenDoors(path string, most int, uids ...uint32) (left []string, err error) {
	ds, err := newDoors(path, most)
	defer ds.close()
	for _, uid := range uids {
		d, failed := ds.enter(uid)
		if d != nil {
			defer d.reserve.Close()
		}
		err = errors.Join(err, failed)
	}
	entries, failed := os.ReadDir(ds.folder)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if errors.Is(failed, fs.ErrNotExist) { // there are none
		failed = nil
	}
	return left, errors.Join(err, failed)
}
