package session_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// What an operation is.
const (
	calls      = "call"
	sends      = "send"
	flushes    = "flush"
	opens      = "open stream"
	states     = "set fact"
	terminates = "terminate"
	drains     = "drain"
	shuts      = "shutdown"
	closing    = "close"
	aborts     = "abort"
)

// What a handler does with a message.
const (
	echoes  = "echo"
	sleeps  = "slow" // and then echo, or return when its context ends
	blocks  = "block"
	fails   = "fail"
	raises  = "panic"
	unknown = "unknown" // there is no such method
)

// An operation is one thing that one side does, and what came of it.
type operation struct {
	id, side int
	what     string
	does     string
	pause    time.Duration // before it
	within   time.Duration // its deadline; 0: none
	cancel   time.Duration // it is canceled after that; negative: never
	takes    time.Duration // of the handler
	size     int           // of the value
	answer   int           // of the reply's value
	end      wire.End

	value, reply string
	err          error
	deadline     time.Duration // since the history began
	runs         int           // of the handler

	called, returned, canceled moment
	started, over, left        moment // of the handler; over: its context had ended
}

// message reports whether the other side has a handler for the operation.
func (op *operation) message() bool { return op.what == calls || op.what == sends }

// large reports whether the value may travel on a stream of its own.
func (op *operation) large() bool { return len(op.value) > wire.MaxBody-200 }

// watches reports whether the handler returns when its context ends.
func (op *operation) watches() bool { return op.does == sleeps || op.does == blocks }

// ends reports whether the operation ends its side's session.
func (op *operation) ends() bool {
	return op.what == drains || op.what == shuts || op.what == closing || op.what == aborts
}

// lastWords returns how long an operation that ends its side's session may take at most; 0: any time.
func (op *operation) lastWords() time.Duration {
	if op.what == drains && op.within > 0 {
		return op.within + time.Second
	}
	return op.within
}

// wanted returns the value of the right reply.
func (op *operation) wanted() string { return fill(op.id, "reply", op.answer) }

func (op *operation) String() string {
	s := fmt.Sprintf("%s %d", op.what, op.id)
	if op.message() {
		s += fmt.Sprintf(" %s of %d bytes, reply %d", op.does, op.size, op.answer)
	}
	if op.takes > 0 {
		s += fmt.Sprintf(", takes %v", op.takes)
	}
	if op.within > 0 {
		s += fmt.Sprintf(", within %v", op.within)
	}
	if op.cancel >= 0 {
		s += fmt.Sprintf(", canceled after %v", op.cancel)
	}
	return s
}

var filler = strings.Repeat("fairlead", 1<<16)

// fill returns a value of n bytes that is no other operation's, or of a few more.
func fill(id int, what string, n int) string {
	s := fmt.Sprintf("%d %s ", id, what)
	return s + filler[:max(0, n-len(s))]
}

// A plan is a history that has not begun: all that is drawn from its seed.
type plan struct {
	seed    int64
	ops     []*operation
	actors  [][]*operation // each does its own one after the other
	limits  [2]wire.Limits // what each side accepts
	faults  [2]*faults     // of the direction to each side
	lane    bool           // the message channel is the connection itself, at both sides
	room    int            // bytes that each direction takes
	cut     time.Duration  // when the connection breaks; 0: not then
	endless bool           // some handlers return at the session's end only
	last    int            // how a session ends that nobody has ended
	closers [2]*operation  // which do so
}

// beginning is how many bytes a side writes at least before the connection breaks: with the first frame of yamux, as which a session without a lane begins.
const beginning = 1 + wire.HeaderSize

// newPlan returns the plan of a seed.
func newPlan(seed int64, injected *atomic.Int64) *plan {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	p := &plan{seed: seed, room: 40 << 10 << r.IntN(3), last: r.IntN(4), endless: r.IntN(10) == 0, lane: r.IntN(3) > 0}
	for side := range p.limits {
		p.limits[side] = wire.Limits{Calls: 1 + r.Int64N(4), OneWay: 1 + r.Int64N(4), Bytes: 64 << 10 << r.IntN(3), Files: 16}
		if r.IntN(4) == 0 {
			p.limits[side].OneWay = 5 + r.Int64N(12)
		}
	}
	for side := range 2 {
		for range 1 + r.IntN(3) {
			var list []*operation
			for range 1 + r.IntN(8) {
				list = append(list, p.add(p.drawOperation(r, side)))
			}
			p.actors = append(p.actors, list)
		}
	}
	for chance := 3; r.IntN(6) < chance; chance-- { // in half of all histories, and then often two that meet
		p.actors = append(p.actors, []*operation{p.add(drawEnd(r, r.IntN(2)))})
	}
	for side := range p.closers {
		p.closers[side] = p.add(&operation{side: side, what: closing, within: closeWait, cancel: -1, end: closed})
	}
	p.drawFaults(r, injected)
	return p
}

func (p *plan) add(op *operation) *operation {
	op.id = len(p.ops)
	op.value = fill(op.id, "value", op.size)
	p.ops = append(p.ops, op)
	return op
}

// some returns a time on a grid, so that things often happen at once.
func some(r *rand.Rand, most int) time.Duration {
	return time.Duration(r.IntN(most)) * time.Millisecond
}

func (p *plan) drawOperation(r *rand.Rand, side int) *operation {
	op := &operation{side: side, cancel: -1, pause: some(r, 10) * time.Duration(r.IntN(2)), size: r.IntN(200), answer: r.IntN(200)}
	switch n := r.IntN(100); {
	case n < 56:
		op.what = calls
		p.drawCall(r, op)
	case n < 62:
		op.what = flushes
	case n < 92:
		op.what, op.does = sends, echoes
		switch n := r.IntN(100); {
		case n < 20:
			op.does, op.takes = sleeps, some(r, 30)
		case n < 25:
			op.does = raises
		case n < 28 && p.endless:
			op.does = blocks
		case n < 40:
			op.size = 1000 * r.IntN(60)
		}
	case n < 96:
		op.what, op.size = opens, r.IntN(5000)
		if r.IntN(10) == 0 {
			op.size *= 60
		}
	default:
		op.what = states
	}
	if r.IntN(3) == 0 {
		op.within = 1*time.Millisecond + some(r, 40)
		if r.IntN(4) == 0 {
			op.within = time.Duration(1+r.IntN(5000)) * time.Microsecond
		}
	}
	if r.IntN(5) == 0 {
		op.cancel = some(r, 30)
	}
	if op.does == blocks && op.within == 0 && op.cancel < 0 && !p.endless {
		op.cancel = some(r, 100)
	}
	return op
}

func (p *plan) drawCall(r *rand.Rand, op *operation) {
	op.does = echoes
	switch n := r.IntN(100); {
	case n < 25:
		op.does, op.takes = sleeps, some(r, 50)
	case n < 45:
		op.does = blocks
	case n < 50:
		op.does = fails
	case n < 55:
		op.does = raises
	case n < 58:
		op.does = unknown
	}
	switch r.IntN(50) {
	case 0:
		op.size = 65_400 + r.IntN(300) // about as long as still goes into a frame
	case 1:
		op.size = 60_000 + r.IntN(int(p.limits[1-op.side].Bytes)) // sometimes more than the other side takes
	case 2:
		op.answer = 65_400 + r.IntN(300)
	case 3:
		op.answer = 60_000 + r.IntN(300_000)
	}
}

// closed is the end that Close makes, after closeWait at the latest.
var closed = wire.End{Code: wire.Invalid, Origin: wire.Local, Text: "closed"}

const (
	closeWait  = 5 * time.Second
	drainFlush = time.Second // for what the other side had sent before it was told of the drain
	tooMany    = "too many"
)

// drawEnd returns what ends a side, or is the beginning of its end.
func drawEnd(r *rand.Rand, side int) *operation {
	op := &operation{side: side, cancel: -1, pause: some(r, 60), end: closed}
	switch r.IntN(7) {
	case 0:
		op.what = terminates
	case 1, 2:
		op.what, op.end = drains, wire.End{Code: wire.Terminating, Origin: wire.Local, Text: "drained"}
		if r.IntN(3) > 0 {
			op.within = time.Millisecond + 20*some(r, 200)
		}
	case 3, 4:
		op.what, op.within = closing, closeWait
	case 5:
		op.what, op.within = shuts, time.Millisecond+some(r, 4000)
		op.end = []wire.End{
			{Code: wire.OverQuota, Origin: wire.Local, Text: tooMany},
			{Code: wire.Interrupted, Origin: wire.Broker, Text: "an operator"},
			{Code: wire.Interrupted, Origin: wire.Local, Text: "again"},
		}[r.IntN(3)]
	default:
		op.what = aborts
	}
	return op
}

func (p *plan) drawFaults(r *rand.Rand, injected *atomic.Int64) {
	level := r.IntN(10) // 0 to 2: no faults; to 4: delays; to 6: stalls too; above: the connection breaks
	for side := range p.faults {
		f := &faults{rnd: rand.New(rand.NewPCG(uint64(p.seed), uint64(side+1))), injected: injected}
		if level >= 3 {
			f.slow, f.short = r.IntN(30), r.IntN(60)
		}
		if level == 5 || level == 6 || level == 9 {
			f.stallAt, f.stall = r.Int64N(5000), time.Duration(r.IntN(20_000))*time.Millisecond
		}
		f.readError = []error{syscall.ECONNRESET, io.EOF}[r.IntN(2)]
		f.writeError = []error{syscall.EPIPE, syscall.ECONNRESET}[r.IntN(2)]
		p.faults[side] = f
	}
	if level < 7 {
		return
	}
	at := beginning + r.Int64N(3000)
	if r.IntN(4) == 0 {
		at = beginning + r.Int64N(200_000)
	}
	switch f := p.faults[r.IntN(2)]; r.IntN(3) {
	case 0:
		f.cutReadAt = at
	case 1:
		f.cutWriteAt = at
	default:
		p.cut = time.Millisecond + some(r, 60)
	}
}
