package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// heldPerSession is how many leases one session holds of those that are held meanwhile; the limit of a session is 256 unless its service says otherwise.
const heldPerSession = 250

// The rows of leases beside raw and fairlead, which are two round trips on a raw socket, and an allocate with its release.
const (
	rowEcho     = "echo call"
	rowAllocate = "allocate"
	rowRelease  = "release"
	rowRawDeath = "raw process killed"
	rowDeath    = "holder killed"
)

// Lease measures allocate and release on one session, beside two payloads there and back on a raw socket and an echo call; and a process that opens a session,
// allocates and is killed, until its address is free again, beside one that connects to the raw peer and is killed, until the raw peer knows. What a process
// takes to start is left out.
func Lease(ctx context.Context, o Options) (*Result, error) {
	o.Callers = 1
	return onStage(ctx, o, func(s *stage) (*Result, error) {
		lines, err := s.rawLines(1, s.Payload)
		if err != nil {
			return nil, err
		}
		defer closeAll(lines)
		on, err := s.dial()
		if err != nil {
			return nil, err
		}
		defer on.Close()
		leases, err := s.dialNetwork()
		if err != nil {
			return nil, err
		}
		defer leases.Close()
		crowd, err := s.crowd()
		if err != nil {
			return nil, err
		}
		defer closeAll(crowd)
		m, err := s.compare(twice(lines[0]), s.echoes(on), s.pairs(leases), s.rawDeaths(), s.deaths(leases))
		if err != nil {
			return nil, err
		}
		r := s.result("lease", m, map[string]string{rowAllocate: rowEcho, rowRelease: rowEcho, rowDeath: rowRawDeath})
		r.Settings.Payload = s.Payload
		return r, nil
	})
}

// dialNetwork opens a session with the network service.
func (s *stage) dialNetwork() (*client.Session, error) {
	return client.Dial(s.ctx, network.Endpoint, s.options())
}

// crowd returns sessions that hold as many leases as others are to hold meanwhile.
func (s *stage) crowd() ([]*client.Session, error) {
	s.progress("taking %d leases", s.Held)
	list, err := openAll((s.Held+heldPerSession-1)/heldPerSession, s.dialNetwork)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(list))
	each(len(list), func(i int) {
		for n := i * heldPerSession; n < min(s.Held, (i+1)*heldPerSession) && errs[i] == nil; n++ {
			_, errs[i] = network.Allocate(s.ctx, list[i], network.Request{Network: s.Network})
		}
	})
	if err := errors.Join(errs...); err != nil {
		closeAll(list)
		return nil, err
	}
	return list, nil
}

// twice is the side of two round trips on a raw socket.
func twice(line *rawConn) side {
	return side{[]string{rawName}, func(ctx context.Context, t *turn) ([]sample, error) {
		return one(repeat(ctx, t, 1, 0, func(int) error {
			if err := line.echo(); err != nil {
				return err
			}
			return line.echo()
		}))
	}}
}

// echoes is the side of echo calls.
func (s *stage) echoes(on *client.Session) side {
	p := packet{make([]byte, s.Payload)}
	return side{[]string{rowEcho}, func(ctx context.Context, t *turn) ([]sample, error) {
		return one(repeat(ctx, t, 1, 0, func(int) error { return s.echo(on, &p) }))
	}}
}

// pairs is the side of an allocate and a release, together and each for itself.
func (s *stage) pairs(on *client.Session) side {
	return side{[]string{fairleadName, rowAllocate, rowRelease}, func(ctx context.Context, t *turn) ([]sample, error) {
		var allocates, releases []time.Duration
		pairs, err := repeat(ctx, t, 1, 0, func(int) error {
			began := time.Now()
			lease, err := network.Allocate(s.ctx, on, network.Request{Network: s.Network})
			if err != nil {
				return err
			}
			allocates = append(allocates, time.Since(began))
			began = time.Now()
			err = lease.Release(s.ctx)
			releases = append(releases, time.Since(began))
			return err
		})
		return []sample{pairs, alone(allocates), alone(releases)}, err
	}}
}

// alone makes a sample of operations of one caller that does other things between.
func alone(took []time.Duration) sample {
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	return counted(took, sum)
}

// rawDeaths is the side of processes that connect to the raw peer and are killed.
func (s *stage) rawDeaths() side {
	names := 0
	return side{[]string{rowRawDeath}, func(ctx context.Context, t *turn) ([]sample, error) {
		watch, err := dialRaw(s.raw, rawWatch, 0)
		if err != nil {
			return nil, err
		}
		defer watch.Close()
		return s.killed(ctx, t, func() []string { names++; return []string{roleHoldRaw, s.raw, strconv.Itoa(names)} }, func(name string) (time.Time, error) {
			n, err := strconv.ParseInt(name, 10, 64)
			if err == nil {
				err = watch.send(number(n))
			}
			if err == nil {
				_, err = watch.Read(make([]byte, 1))
			}
			return time.Now(), err
		})
	}}
}

// deaths is the side of processes that hold a lease and are killed. What asks for the address is on.
func (s *stage) deaths(on *client.Session) side {
	return side{[]string{rowDeath}, func(ctx context.Context, t *turn) ([]sample, error) {
		return s.killed(ctx, t, func() []string { return []string{roleHoldLease, s.Socket, s.Network} }, func(address string) (time.Time, error) {
			addr, err := netip.ParseAddr(address)
			if err != nil {
				return time.Time{}, err
			}
			for {
				lease, err := network.Allocate(s.ctx, on, network.Request{Network: s.Network, Addresses: []netip.Addr{addr}})
				if errors.Is(err, wire.Conflict) { // the kernel has not come to it: the process lives
					continue
				}
				freed := time.Now()
				if err == nil {
					err = lease.Release(s.ctx)
				}
				return freed, err
			}
		})
	}}
}

// killed starts a process that holds something, kills it, and waits until that is free, again and again. What counts is what the process took to get it, and
// from its SIGKILL until it was free.
func (s *stage) killed(ctx context.Context, t *turn, args func() []string, free func(what string) (time.Time, error)) ([]sample, error) {
	var list []time.Duration
	_, err := repeat(ctx, t, 1, 0, func(int) error {
		p, err := role(s.log, args()...)
		if err != nil {
			return err
		}
		defer p.kill()
		defer context.AfterFunc(ctx, func() { _ = p.Process.Kill() })()
		took, what, err := p.holds()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := p.Process.Kill(); err != nil {
			return os.NewSyscallError("kill", err)
		}
		freed, err := free(what)
		list = append(list, took+freed.Sub(began))
		return err
	})
	return []sample{alone(list)}, err
}

// holds waits until the process holds something, and returns how long it says that this took, and what it is.
func (p *process) holds() (took time.Duration, what string, err error) {
	rest, err := p.await(held)
	if err != nil {
		return 0, "", err
	}
	first, what, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("a process says that it holds %q: %w", rest, err)
	}
	return time.Duration(n), what, nil
}
