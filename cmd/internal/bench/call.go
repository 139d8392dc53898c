package bench

import (
	"context"

	"github.com/fairlead-dev/fairlead/client"
)

// Call measures calls with a payload that comes back, beside as many bytes there and back on raw sockets. A raw socket carries one caller's
// bytes only, so each has its own there.
func Call(ctx context.Context, o Options) (*Result, error) {
	return onStage(ctx, o, func(s *stage) (*Result, error) {
		lines, err := s.rawLines(s.Callers, s.Payload)
		if err != nil {
			return nil, err
		}
		defer closeAll(lines)
		sessions, err := openAll(s.Sessions, s.dial)
		if err != nil {
			return nil, err
		}
		defer closeAll(sessions)
		before, err := cpuOf(s.brokerPID)
		if err != nil {
			return nil, err
		}
		m, err := s.compare(s.rawCalls(lines), s.calls(sessions))
		if err != nil {
			return nil, err
		}
		after, err := cpuOf(s.brokerPID)
		used := after - before
		r := s.result("call", m, nil)
		r.Settings.Payload, r.Settings.Sessions, r.BrokerCPU = s.Payload, s.Sessions, &used
		return r, err
	})
}

// rawCalls is the side of raw sockets, one for each caller.
func (s *stage) rawCalls(lines []*rawConn) side {
	return side{[]string{rawName}, func(ctx context.Context, t *turn) ([]sample, error) {
		return one(repeat(ctx, t, len(lines), s.Pause, func(i int) error { return lines[i].echo() }))
	}}
}

// calls is the side of sessions, which the callers share.
func (s *stage) calls(sessions []*client.Session) side {
	packed := packets(s.Callers, s.Payload)
	return side{[]string{fairleadName}, func(ctx context.Context, t *turn) ([]sample, error) {
		return one(repeat(ctx, t, s.Callers, s.Pause, func(i int) error { return s.echo(sessions[i%len(sessions)], &packed[i]) }))
	}}
}

// one returns a sample alone.
func one(m sample, err error) ([]sample, error) { return []sample{m}, err }

// packets returns a packet with so many bytes for each of n callers.
func packets(n, payload int) []packet {
	list := make([]packet, n)
	for i := range list {
		list[i].Bytes = make([]byte, payload)
	}
	return list
}

// rawLines returns n connections with the raw peer, each of which has carried one payload.
func (s *stage) rawLines(n, payload int) ([]*rawConn, error) {
	return openAll(n, func() (*rawConn, error) {
		c, err := s.dialRaw(payload)
		if err == nil {
			err = c.echo()
		}
		return c, err
	})
}

// Open measures sessions from their opening through the broker over one call to their end, beside the same with a raw socket that is connected and closed.
func Open(ctx context.Context, o Options) (*Result, error) {
	return onStage(ctx, o, func(s *stage) (*Result, error) {
		packed := packets(s.Callers, s.Payload)
		raw := side{[]string{rawName}, func(ctx context.Context, t *turn) ([]sample, error) {
			return one(repeat(ctx, t, s.Callers, s.Pause, func(int) error { return s.once() }))
		}}
		fairlead := side{[]string{fairleadName}, func(ctx context.Context, t *turn) ([]sample, error) {
			return one(repeat(ctx, t, s.Callers, s.Pause, func(i int) error {
				on, err := s.dial()
				if err != nil {
					return err
				}
				defer on.Close()
				return s.echo(on, &packed[i])
			}))
		}}
		m, err := s.compare(raw, fairlead)
		if err != nil {
			return nil, err
		}
		r := s.result("open", m, nil)
		r.Settings.Payload = s.Payload
		return r, nil
	})
}

// once connects to the raw peer, has it echo one payload, and closes.
func (s *stage) once() error {
	c, err := s.dialRaw(s.Payload)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.echo()
}
