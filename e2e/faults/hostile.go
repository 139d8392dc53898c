package faults

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/wire"
)

// The kinds of floods.
const (
	wrongFrames = "wrong first frames"
	halfFrames  = "half frames"
	drips       = "a byte now and then"
	deaf        = "opens that never read"
	garbage     = "garbage in a session"
	pings       = "pings in a session"
	hangUps     = "connections that go at once"
)

// nobody is the uid of every other flood, where this process may be another.
const nobody = 65534

// A mob is hostile connections, for a time.
type mob struct {
	socket string
	what   string
	until  time.Time
}

// playHostile floods a broker and ends. Its arguments are its socket, what to do, how many connections, for how long, and a seed.
func playHostile(args []string) error {
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	length, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[4], 10, 64)
	if err != nil {
		return err
	}
	if seed%2 == 0 && syscall.Geteuid() == 0 {
		if err := syscall.Setgid(nobody); err != nil {
			return err
		}
		if err := syscall.Setuid(nobody); err != nil {
			return err
		}
	}
	m := mob{args[0], args[1], time.Now().Add(length)}
	var all sync.WaitGroup
	for i := range size {
		all.Go(func() { m.connect(rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	all.Wait()
	return nil
}

// connect does the mob's worst on one connection. What the broker answers is nobody's business: it must only not be harmed.
func (m mob) connect(r *rand.Rand) {
	time.Sleep(below(r, max(time.Until(m.until), 1)))
	c, err := net.DialTimeout("unix", m.socket, time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(m.until.Add(time.Second))
	endpoint := Services[r.IntN(len(Services))]
	f, err := wire.NewFrame(wire.KindOpen, 0, wire.Open{Endpoint: endpoint, Within: 2000, Features: []string{wire.FeatureLane}})
	if err != nil {
		return
	}
	open := f.Append(nil)
	switch m.what {
	case wrongFrames:
		all := stage.WrongFrames()
		c.Write(all[r.IntN(len(all))].Bytes)
	case halfFrames:
		c.Write(open[:r.IntN(len(open))])
		m.linger()
	case drips:
		for i := range open {
			c.Write(open[i : i+1])
			time.Sleep(below(r, 50*time.Millisecond))
		}
	case deaf:
		c.Write(open)
		m.linger()
	case garbage, pings:
		c.Write(open)
		c.Read(make([]byte, 4096))
		for time.Now().Before(m.until) {
			if _, err := c.Write(m.noise(r)); err != nil {
				return
			}
		}
	}
}

func (m mob) linger() { time.Sleep(time.Until(m.until)) }

// noise is what a session does not expect: bytes, or pings of yamux (version 0, type 2, flag SYN).
func (m mob) noise(r *rand.Rand) []byte {
	if m.what == pings {
		var b []byte
		for i := range 100 {
			b = append(b, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, byte(i))
		}
		return b
	}
	b := make([]byte, 1+r.IntN(2000))
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	if r.IntN(2) == 0 { // what begins like a frame goes deeper
		b = append(wire.Header{Kind: []wire.Kind{wire.KindRequest, wire.KindOneWay, wire.KindNotice, wire.KindReply}[r.IntN(4)], ID: 1, Length: uint32(len(b))}.Append(nil), b...)
	}
	return b
}
