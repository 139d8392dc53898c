package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

// The phases of a crowd, as the machine says them.
const (
	goOn  = "go"     // everybody works
	hold  = "hold"   // everybody finishes what it does, keeps a session and perhaps a lease, and waits
	letGo = "let go" // everybody gives all back, and waits
	again = "again"  // answered when each has come round twice since, and nothing is kept for this process that it does not use
	calm  = "calm"   // answered when each has come round once since, with the failures there were
)

// A holding is what a client has while it holds.
type holding struct {
	Session   string   `json:"session"`
	Endpoint  string   `json:"endpoint"`
	Lease     string   `json:"lease,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Hostname  string   `json:"hostname,omitempty"`
}

// An answer is what a crowd says to a phase.
type answer struct {
	Phase    string    `json:"phase"`
	Held     []holding `json:"held,omitempty"`
	Failures []string  `json:"failures,omitempty"` // of calm
}

// A gang is a crowd's own side. It has that other name as crowd is what the machine calls the process.
type gang struct {
	place
	number uint64
	self   process.ID
	told   *ledger
	lies   string
	ticks  atomic.Int64 // of 100 ms in which this process ran

	mu       sync.Mutex
	phase    string
	changed  chan struct{} // closed and replaced with the phase
	held     map[int]holding
	waiting  map[int]bool // clients that wait for another phase
	rounds   map[int]int  // of each client
	brisk    bool         // the machine waits: turns are short
	failures []string
}

const tick = 100 * time.Millisecond

// playCrowd is a crowd. Its arguments are the place, its number, and how many callers and lessees it has.
func playCrowd(args []string) error {
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(args[i+1]); err != nil {
			return err
		}
	}
	g := &gang{
		place: place(args[0]), number: uint64(n[0]), lies: os.Getenv(breakVariable), phase: goOn, changed: make(chan struct{}),
		held: map[int]holding{}, waiting: map[int]bool{}, rounds: map[int]int{},
	}
	var err error
	if g.self, err = process.Identify(os.Getpid()); err != nil {
		return err
	}
	if g.told, err = openLedger(g.at("told")); err != nil {
		return err
	}
	go g.watchClock()
	for i := range n[1] + n[2] {
		c := &caller{gang: g, number: i, rnd: rand.New(rand.NewPCG(uint64(n[0]), uint64(i)))}
		if i < n[1] {
			go c.live(c.call)
		} else {
			go c.live(c.lease)
		}
	}
	fmt.Println("up")
	g.obey(n[1] + n[2])
	return nil // and so ends all that is open
}

func (g *gang) watchClock() {
	for range time.Tick(tick) {
		g.ticks.Add(1)
	}
}

// obey does what the machine says, until that is gone.
func (g *gang) obey(clients int) {
	out := json.NewEncoder(os.Stdout)
	daemon := &caller{gang: g, number: clients, rnd: rand.New(rand.NewPCG(g.number, uint64(clients)))} // does what is nobody's
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch phase := in.Text(); phase {
		case goOn:
			g.enter(phase)
			out.Encode(answer{Phase: phase})
		case hold, letGo:
			g.enter(phase)
			g.until(func() bool { return len(g.waiting) == clients })
			g.mu.Lock()
			a := answer{Phase: phase}
			for _, h := range g.held {
				a.Held = append(a.Held, h)
			}
			g.mu.Unlock()
			out.Encode(a)
		case again, calm:
			g.mu.Lock()
			clear(g.rounds)
			g.failures, g.brisk = nil, true
			g.mu.Unlock()
			least := map[string]int{again: 3, calm: 2}[phase] // the first of them has begun before
			g.until(func() bool {
				done := 0
				for _, n := range g.rounds {
					if n >= least {
						done++
					}
				}
				return done == clients
			})
			if phase == again {
				daemon.forget()
			}
			g.mu.Lock()
			a := answer{Phase: phase, Failures: slices.Clone(g.failures)}
			g.mu.Unlock()
			out.Encode(a)
		}
	}
}

// until waits for ok, which is asked with the mutex held.
func (g *gang) until(ok func() bool) {
	for {
		g.mu.Lock()
		done := ok()
		g.mu.Unlock()
		if done {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (g *gang) enter(phase string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase, g.brisk = phase, false
	clear(g.waiting)
	close(g.changed)
	g.changed = make(chan struct{})
}

// A caller is one client: also a lessee, which leases.
type caller struct {
	*gang
	number int
	rnd    *rand.Rand
	count  uint64
}

// live does one thing again and again, and waits while all have let go.
func (c *caller) live(turn func()) {
	for {
		turn()
		c.mu.Lock()
		c.rounds[c.number]++
		c.mu.Unlock()
		c.rest(600 * time.Millisecond)
		c.wait(letGo, nil)
	}
}

// wait waits while a phase lasts. Until then the client has h.
func (c *caller) wait(phase string, h *holding) {
	for {
		c.mu.Lock()
		if c.phase != phase {
			delete(c.held, c.number)
			c.mu.Unlock()
			return
		}
		if h != nil {
			c.held[c.number] = *h
		}
		c.waiting[c.number] = true
		changed := c.changed
		c.mu.Unlock()
		<-changed
	}
}

// working reports whether a client goes on with what it does.
func (c *caller) working() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase == goOn
}

// holding reports whether a client is to keep what it has.
func (c *caller) holding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase == hold
}

// rest waits for at most so long, or a tenth of that while the machine waits.
func (c *caller) rest(most time.Duration) {
	c.mu.Lock()
	if c.brisk {
		most /= 10
	}
	c.mu.Unlock()
	time.Sleep(below(c.rnd, most))
}

// id returns the next id of an act: nobody else's, and none of before.
func (c *caller) id() uint64 {
	c.count++
	return c.number64()<<36 | c.count
}

func (c *caller) number64() uint64 { return c.gang.number<<8 | uint64(c.number) }

// actTime is what an act may take.
const actTime = 15 * time.Second

// do does an act within its time, and writes down what became of it. It finds acts that do not come back, and failures that nothing explains.
func (c *caller) do(a act, id uint64, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), actTime)
	defer cancel()
	begun := c.ticks.Load()
	late := time.AfterFunc(2*actTime+dying, func() {
		if (c.ticks.Load()-begun)*int64(tick) > int64(actTime+dying) {
			c.find(noReply, "crowd %d, client %d: %s %x has not come back", c.gang.number, c.number, actNames[a], id)
		}
	})
	err := f(ctx)
	late.Stop()
	c.became(a, id, err)
	return err
}

// became writes down what became of an act.
func (c *caller) became(a act, id uint64, err error) {
	o := outcome{ID: id, Act: a}
	if e := wire.AsError(err); e != nil {
		o.Code, o.Sent = e.Code, e.Sent
		if a != allocateAct || e.Code != wire.Conflict { // another lessee has that hostname
			c.failed(a, err)
		}
		if !slices.Contains(explained[a], e.Code) {
			c.find(unexplained, "crowd %d, client %d: %s %x: %v (sent %t, origin %s)", c.gang.number, c.number, actNames[a], id, err, e.Sent, e.Origin)
		}
	}
	c.told.became(o)
}

// failed keeps the last failures for who asks how it goes.
func (g *gang) failed(a act, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures = append(g.failures, fmt.Sprintf("%s: %v", actNames[a], err))
	if len(g.failures) > 5 {
		g.failures = g.failures[1:]
	}
}

// explained are the codes that faults explain.
var explained = func() [][]wire.Code {
	gone := []wire.Code{wire.Interrupted, wire.Terminating, wire.DeadlineExceeded}
	calls := append(slices.Clone(gone), wire.OverQuota)
	all := make([][]wire.Code, len(actNames))
	all[openAct] = append(slices.Clone(gone), wire.OverQuota, wire.StartFailed, wire.StartTimeout, wire.Suspended, wire.Refused, wire.Unavailable)
	for _, a := range []act{callAct, noteAct, passAct, sumAct, rawAct} {
		all[a] = calls
	}
	all[allocateAct] = append(slices.Clone(calls), wire.Unavailable, wire.Exhausted, wire.Conflict)
	all[releaseAct] = gone
	all[reclaimAct] = append(slices.Clone(all[openAct]), wire.Conflict)
	all[evictAct] = append(slices.Clone(all[openAct]), wire.NotFound)
	return all
}()

// open opens a session.
func (c *caller) open(endpoint string) (s *client.Session) {
	c.do(openAct, c.id(), func(ctx context.Context) (err error) {
		s, err = client.Dial(ctx, endpoint, client.Options{Socket: c.socket(), Title: "crowd " + strconv.FormatUint(c.gang.number, 10)})
		return err
	})
	return s
}

// words is a text of n bytes.
func words(n int) string { return strings.Repeat("fairlead", n/8+1)[:n] }
