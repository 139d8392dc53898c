package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/services/network"
)

const (
	// few is how many idle sessions there are when all is measured for the first time.
	few = 10
	// settle is how long they are left alone before they are weighed: a session that is idle for 2 s waits on no goroutine.
	settle = 3 * time.Second
)

// An IdleResult is what idle sessions cost, each of them.
type IdleResult struct {
	Version  int    `json:"version"`
	Bench    string `json:"bench"`
	Sessions int    `json:"sessions"`
	Leased   bool   `json:"leased"`
	Rounds   int    `json:"rounds"`
	// Raw is the raw peer with as many connections, Fairlead the service, or the network service, and Broker the broker.
	Raw      Footprint      `json:"raw"`
	Fairlead Footprint      `json:"fairlead"`
	Broker   Footprint      `json:"broker"`
	Ratio    FootprintRatio `json:"ratio"`
	// Rows are what takes how long beside these sessions, and beside few.
	Rows []Row `json:"rows"`
}

// A Footprint is what one idle session costs a process, by what the process has grown. Memory and Heap are bytes.
type Footprint struct {
	Memory      float64 `json:"memory"` // anonymous memory, by RssAnon of /proc/PID/status
	Descriptors float64 `json:"descriptors"`
	// Heap is HeapInuse and StackInuse after a collection. It and Goroutines are nil where the process cannot be asked.
	Heap       *float64 `json:"heap"`
	Goroutines *float64 `json:"goroutines"`
}

// A FootprintRatio says how the service's Footprint stands to the raw peer's.
type FootprintRatio struct {
	Memory      float64 `json:"memory"`
	Descriptors float64 `json:"descriptors"`
}

// Idle measures what sessions cost that are open and do nothing, beside connections with the raw peer: memory and descriptors, and how long an open, a call and
// the list of sessions take beside them. A process can only grow once, so this has no rounds; what takes how long has.
func Idle(ctx context.Context, o Options) (*IdleResult, error) {
	o.Callers = 1
	return onStage(ctx, o, func(s *stage) (*IdleResult, error) {
		r := &IdleResult{Version: 1, Bench: "idle", Sessions: s.Sessions, Leased: s.Leased, Rounds: rounds}
		var err error
		if r.Raw, err = s.idleRaw(); err != nil {
			return nil, err
		}
		if err := s.idle(r); err != nil {
			return nil, err
		}
		r.Ratio = FootprintRatio{r.Fairlead.Memory / r.Raw.Memory, r.Fairlead.Descriptors / r.Raw.Descriptors}
		return r, nil
	})
}

// idleRaw opens connections with the raw peer, and returns what each costs it.
func (s *stage) idleRaw() (f Footprint, err error) {
	s.progress("opening %d raw connections", s.Sessions)
	open := func() (*rawConn, error) {
		c, err := s.dialRaw(s.Payload)
		if err == nil {
			err = c.echo()
		}
		return c, err
	}
	weigh := func() (w weight, err error) {
		c, err := dialRaw(s.raw, rawWeight, 0)
		if err != nil {
			return w, err
		}
		defer c.Close()
		w.Memory, err = c.ask(nil)
		return w, err
	}
	f, lines, err := grown(s.Sessions, open, s.peer.Process.Pid, weigh)
	closeAll(lines)
	f.Goroutines = nil
	return f, err
}

// idle opens sessions, and tells r what each costs and what takes how long beside them.
func (s *stage) idle(r *IdleResult) error {
	t := s.target()
	some, err := openAll(few, t.open)
	defer func() { closeAll(some) }()
	if err != nil {
		return err
	}
	pid := some[0].Peer().PID
	m, err := s.beside(t, few)
	if err != nil {
		return err
	}
	before, err := bodyOf(s.brokerPID)
	if err != nil {
		return err
	}
	s.progress("opening %d sessions", s.Sessions)
	f, all, err := grown(s.Sessions, t.open, pid, t.weigh)
	defer func() { closeAll(all) }()
	if err != nil {
		return err
	}
	after, err := bodyOf(s.brokerPID)
	if err != nil {
		return err
	}
	n := s.Sessions + few
	more, err := s.beside(t, n)
	if err != nil {
		return err
	}
	of := map[string]string{}
	for i, name := range more.names {
		of[name] = m.names[i]
		for _, sample := range more.of[name] {
			m.add(name, sample)
		}
	}
	r.Fairlead, r.Broker, r.Rows = f, each1(before, after, s.Sessions), m.rows(of)
	return nil
}

// grown opens n of something, and returns what a process has grown by for each, and what was opened. weigh has the process collect its garbage first; it may be
// nil.
func grown[T io.Closer](n int, open func() (T, error), pid int, weigh func() (weight, error)) (f Footprint, list []T, err error) {
	look := func() (b body, w weight, err error) {
		if weigh != nil {
			w, err = weigh()
		}
		if err == nil {
			b, err = bodyOf(pid)
		}
		return b, w, err
	}
	before, light, err := look()
	if err != nil {
		return f, nil, err
	}
	if list, err = openAll(n, open); err != nil {
		return f, nil, err
	}
	time.Sleep(settle)
	after, heavy, err := look()
	f = each1(before, after, n)
	if weigh != nil {
		f.Heap, f.Goroutines = share(heavy.Memory-light.Memory, n), share(heavy.Goroutines-light.Goroutines, n)
	}
	return f, list, err
}

// each1 returns how much a process has grown for each of n.
func each1(before, after body, n int) Footprint {
	return Footprint{Memory: *share(after.memory-before.memory, n), Descriptors: *share(after.descriptors-before.descriptors, n)}
}

// share returns the part of one of n.
func share(total int64, n int) *float64 {
	part := math.Round(100*float64(total)/float64(n)) / 100
	return &part
}

// A target is what idle sessions are opened with.
type target struct {
	open  func() (*client.Session, error) // a session as it is to idle
	dial  func() (*client.Session, error) // one that is there for a call
	call  func(*client.Session) error
	weigh func() (weight, error) // nil: the process cannot be asked
}

// target is the bench's own service or, for sessions that are to hold leases, the network service.
func (s *stage) target() target {
	if s.Leased {
		return target{s.leased, s.dialNetwork, func(on *client.Session) error {
			_, err := network.Networks(s.ctx, on)
			return err
		}, nil}
	}
	p := packet{make([]byte, s.Payload)}
	return target{s.dial, s.dial, func(on *client.Session) error { return s.echo(on, &p) }, func() (w weight, err error) {
		on, err := s.dial()
		if err != nil {
			return w, err
		}
		defer on.Close()
		return client.Call[weight](s.ctx, on, methodWeight, struct{}{})
	}}
}

// leased opens a session that holds a lease.
func (s *stage) leased() (*client.Session, error) {
	on, err := s.dialNetwork()
	if err != nil {
		return nil, err
	}
	if _, err := network.Allocate(s.ctx, on, network.Request{Network: s.Network}); err != nil {
		on.Close()
		return nil, err
	}
	return on, nil
}

// beside measures what an open with its end, a call and the list of sessions take beside n idle sessions.
func (s *stage) beside(t target, n int) (m measured, err error) {
	on, err := t.dial()
	if err != nil {
		return m, err
	}
	defer on.Close()
	timed := func(name string, do func() error) side {
		return side{[]string{fmt.Sprintf("%s, %d idle", name, n)}, func(ctx context.Context, u *turn) ([]sample, error) {
			return one(repeat(ctx, u, 1, 0, func(int) error { return do() }))
		}}
	}
	return s.compare(
		timed("open and close", func() error {
			on, err := t.dial()
			if err != nil {
				return err
			}
			return on.Close()
		}),
		timed("call", func() error { return t.call(on) }),
		timed("session list", func() error {
			_, err := console.Sessions(s.ctx, s.options(), broker.SessionsRequest{})
			return err
		}))
}
