package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The kinds of faults.
const (
	kill    = "kill"
	stop    = "stop"
	delay   = "delay"
	starve  = "starve"
	flood   = "flood"
	command = "command"
)

// The kinds of processes that faults hit.
const (
	brokerd  = "brokerd"
	network  = "network service"
	instance = "instance"
	stranger = "stranger"
	keeper   = "keeper"
	crowd    = "client process"
	runtimes = "runtime"
	initial  = "container init"
)

// A Fault is one thing that a plan does.
type Fault struct {
	At     time.Duration // since the round has begun
	Kind   string
	Target string        // the kind of process; of a flood and a command: what it is
	Rank   int           // which of those that live
	For    time.Duration // how long; of a kill and a command: 0
	Size   int           // of a flood: connections; of starvation: descriptors that are left; of a command: which service
	Seed   uint64        // of a flood's own choices
}

func (f Fault) String() string {
	return fmt.Sprintf("%v %s %s %d for %v, %d", f.At, f.Kind, f.Target, f.Rank, f.For, f.Size)
}

// A Round is a time of faults, and the quiet behind it.
type Round struct {
	Number  int
	Faults  []Fault // in the order of At
	Autopsy bool    // brokerd and the network service are ended by SIGQUIT in the quiet, for their goroutines
}

const (
	roundTime = 8 * time.Second // of faults
	meanPause = 25 * time.Millisecond
)

// A share is how likely something is beside others.
type share struct {
	weight int
	name   string
}

var (
	kinds     = []share{{66, kill}, {12, stop}, {5, delay}, {5, starve}, {6, flood}, {6, command}}
	victims   = []share{{46, crowd}, {17, instance}, {10, runtimes}, {7, network}, {6, brokerd}, {5, keeper}, {5, stranger}, {4, initial}}
	stopped   = []share{{25, crowd}, {25, instance}, {15, network}, {15, brokerd}, {8, keeper}, {6, stranger}, {6, runtimes}}
	starved   = []share{{40, brokerd}, {30, instance}, {30, network}}
	floods    = []share{{20, wrongFrames}, {15, halfFrames}, {15, drips}, {15, deaf}, {15, garbage}, {10, pings}, {10, hangUps}}
	operators = []share{{25, reload}, {20, restart}, {10, halt}, {10, launch}, {10, reset}, {20, closing}, {5, leave}}
)

// below returns a time below d.
func below(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

func draw(r *rand.Rand, list []share) string {
	sum := 0
	for _, s := range list {
		sum += s.weight
	}
	n := r.IntN(sum)
	i := slices.IndexFunc(list, func(s share) bool {
		n -= s.weight
		return n < 0
	})
	return list[i].name
}

// NewRound returns the plan of a round. In two rounds of three nobody kills brokerd, so that what a long life leaves behind is seen.
func NewRound(seed int64, number int) Round {
	r := rand.New(rand.NewPCG(uint64(seed), uint64(number)))
	round := Round{Number: number, Autopsy: number%3 == 2}
	for at := time.Duration(0); ; {
		at += below(r, 2*meanPause)
		if at >= roundTime {
			return round
		}
		f := newFault(r, at)
		if number%3 == 0 || f.Target != brokerd && f.Target != leave || f.Kind != kill && f.Kind != command {
			round.Faults = append(round.Faults, f)
		}
	}
}

func newFault(r *rand.Rand, at time.Duration) Fault {
	f := Fault{At: at, Kind: draw(r, kinds), Rank: r.IntN(1 << 20), Seed: r.Uint64()}
	short := 10*time.Millisecond + below(r, 200*time.Millisecond)
	long := 100*time.Millisecond + below(r, 2*time.Second)
	if r.IntN(3) > 0 {
		long = short
	}
	switch f.Kind {
	case kill:
		f.Target = draw(r, victims)
	case stop:
		f.Target, f.For = draw(r, stopped), long
	case delay:
		f.Target, f.For = draw(r, stopped), 3*short
	case starve:
		f.Target, f.For, f.Size = draw(r, starved), long, r.IntN(6)
	case flood:
		f.Target, f.For, f.Size = draw(r, floods), long, 10+r.IntN(200)
	case command:
		f.Target, f.Size = draw(r, operators), r.IntN(1<<20)
	}
	return f
}
