package bench

import (
	"context"
	"fmt"
	"time"
)

// What else is measured where a stream is: the calls beside each.
const (
	RawBeside   = "raw calls beside it"
	Beside      = "calls beside it"
	YamuxBeside = "plain yamux calls beside it"
)

// Stream measures bytes on a stream, beside a raw socket and a stream of plain yamux; callers may call on the same session meanwhile, or each on a raw socket,
// or on a stream of the same session of plain yamux that they keep. The last byte counts when the other end has said how many there were.
func Stream(ctx context.Context, o Options) (*Result, error) {
	return onStage(ctx, o, func(s *stage) (*Result, error) {
		lines, err := s.rawLines(s.Callers, besidePayload)
		if err != nil {
			return nil, err
		}
		defer closeAll(lines)
		on, err := s.dial()
		if err != nil {
			return nil, err
		}
		defer on.Close()
		plain, err := dialYamux(s.raw)
		if err != nil {
			return nil, err
		}
		defer plain.Close()
		kept, err := echoStreams(plain, s.Callers, besidePayload)
		if err != nil {
			return nil, err
		}
		packed := packets(s.Callers, besidePayload)
		m, err := s.compare(
			s.streams([]string{rawName, RawBeside}, func() (pipe, error) { return dialRaw(s.raw, rawSink, 0) }, func(i int) error { return lines[i].echo() }),
			s.streams([]string{fairleadName, Beside}, func() (pipe, error) { return on.OpenStream(s.ctx, methodSink) }, func(i int) error { return s.echo(on, &packed[i]) }),
			s.streams([]string{yamuxName, YamuxBeside}, func() (pipe, error) { return openYamux(plain, rawSink, 0) }, func(i int) error { return kept[i].echo() }))
		if err != nil {
			return nil, err
		}
		r := s.result("stream", m, map[string]string{yamuxName: rawName, Beside: RawBeside, YamuxBeside: RawBeside})
		r.Settings.Payload = s.Payload
		r.RatioYamux = new(m.ratio(fairleadName, yamuxName))
		for i := range r.Rows {
			if r.Rows[i].Name == Beside {
				r.Rows[i].RatioYamux = new(m.ratio(Beside, YamuxBeside))
			}
		}
		return r, nil
	})
}

// besidePayload is the payload of calls beside a stream, in bytes.
const besidePayload = 64

// streams is a side that writes as much as is taken, and has callers call meanwhile. Names are those of the stream and of the calls.
func (s *stage) streams(names []string, open func() (pipe, error), call func(int) error) side {
	return side{names, func(ctx context.Context, t *turn) ([]sample, error) {
		p, err := open()
		if err != nil {
			return nil, err
		}
		defer p.Close()
		if c, ok := p.(*rawConn); ok {
			err = c.send(nil)
		}
		if err != nil {
			return nil, err
		}
		stop, calls := s.meanwhile(ctx, call)
		written, err := s.pour(ctx, t, p)
		stop()
		beside := <-calls
		switch {
		case err != nil:
			return nil, err
		case beside.err != nil:
			return nil, beside.err
		case s.Callers == 0:
			return []sample{written}, nil
		}
		return []sample{written, beside.sample}, nil
	}}
}

// An outcome is what has come of calls.
type outcome struct {
	sample
	err error
}

// meanwhile has the callers call until stop is called.
func (s *stage) meanwhile(ctx context.Context, call func(int) error) (stop func(), calls chan outcome) {
	calls = make(chan outcome, 1)
	if s.Callers == 0 {
		calls <- outcome{}
		return func() {}, calls
	}
	t := &turn{began: time.Now(), time: maxTime}
	go func() {
		m, err := repeat(ctx, t, s.Callers, s.Pause, call)
		calls <- outcome{m, err}
	}()
	return func() { t.over.Store(true) }, calls
}

// pour writes payloads until the turn is over, and waits until the other end has them all.
func (s *stage) pour(ctx context.Context, t *turn, p pipe) (sample, error) {
	data := make([]byte, s.Payload)
	m, err := repeat(ctx, t, 1, s.Pause, func(int) error {
		_, err := p.Write(data)
		return err
	})
	if err == nil {
		err = p.CloseWrite()
	}
	var arrived int64
	if err == nil {
		arrived, err = readNumber(p)
	}
	m.elapsed, m.amount = time.Since(t.began), float64(arrived)
	if sent := int64(len(m.took)) * int64(len(data)); err == nil && arrived != sent {
		err = fmt.Errorf("%d bytes were written, and %d arrived", sent, arrived)
	}
	return m, err
}
