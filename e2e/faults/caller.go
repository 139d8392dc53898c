package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A conversation is a caller's session with a worker.
type conversation struct {
	*caller
	s    *session.Session
	sent int64 // one-way messages
}

// call is one turn of a caller: a session, some acts on it, and its end.
func (c *caller) call() {
	endpoint := Services[c.rnd.IntN(len(Services))]
	s := c.open(endpoint)
	if s == nil {
		return
	}
	defer s.Close()
	talk := conversation{caller: c, s: s}
	acts := []func() error{talk.work, talk.work, talk.work, talk.several, talk.notes, talk.notes, talk.pass, talk.sum, talk.raw}
	for range 1 + c.rnd.IntN(8) {
		if !c.working() || acts[c.rnd.IntN(len(acts))]() != nil {
			break
		}
		c.rest(400 * time.Millisecond)
	}
	for c.holding() && s.Call(context.Background(), "self", nil, nil) == nil {
		c.wait(hold, &holding{Session: s.ID(), Endpoint: endpoint})
	}
}

// work makes one call.
func (c *conversation) work() error { return c.one(c.request()) }

// request is that of a call: most are small and quick, and some are large, slow or both.
func (c *conversation) request() work {
	r := work{ID: c.id(), After: c.sent, Text: words(c.rnd.IntN(200))}
	switch c.rnd.IntN(20) {
	case 0:
		r.Text = words(60_000 + c.rnd.IntN(200_000))
	case 1, 2:
		r.Takes = time.Duration(c.rnd.IntN(100)) * time.Millisecond
	}
	return r
}

func (c *conversation) one(r work) error {
	return c.do(callAct, r.ID, func(ctx context.Context) error {
		reply, err := client.Call[work](ctx, c.s, "work", r)
		if err == nil && (reply.ID != r.ID || reply.Text != strings.ToUpper(r.Text)) {
			c.find(wrongReply, "call %x is answered as %x, with %d bytes for %d", r.ID, reply.ID, len(reply.Text), len(r.Text))
		}
		return err
	})
}

// several makes calls beside each other.
func (c *conversation) several() error {
	var calling sync.WaitGroup
	failures := make(chan error, 4)
	for range cap(failures) {
		r := c.request()
		calling.Go(func() { failures <- c.one(r) })
	}
	calling.Wait()
	close(failures)
	var all error
	for err := range failures {
		all = errors.Join(all, err)
	}
	return all
}

// notes sends one-way messages, and flushes them.
func (c *conversation) notes() error {
	var left []uint64
	var failed error
	for range 1 + c.rnd.IntN(20) {
		n := note{ID: c.id(), Number: c.sent + 1}
		ctx, cancel := context.WithTimeout(context.Background(), actTime)
		failed = c.s.Send(ctx, "note", n)
		cancel()
		if failed != nil {
			c.became(noteAct, n.ID, failed)
			break
		}
		c.sent++
		left = append(left, n.ID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), actTime)
	defer cancel()
	err := c.s.Flush(ctx)
	for _, id := range left {
		if e := wire.AsError(err); e != nil {
			lost := *e
			lost.Sent = true // the messages had left, whatever the flush says of itself
			c.became(noteAct, id, &lost)
		} else {
			c.became(noteAct, id, nil)
		}
	}
	return errors.Join(failed, err)
}

// pass passes one end of a pipe, and gets another back. Whoever had a copy must have closed it.
func (c *conversation) pass() error {
	id := c.id()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = c.do(passAct, id, func(ctx context.Context) error {
		reply, err := client.Call[parcel](ctx, c.s, "pass", parcel{id, w})
		if err != nil {
			return err
		}
		if reply.File == nil {
			c.find(wrongReply, "parcel %x is answered without a descriptor", id)
			return nil
		}
		defer reply.File.Close()
		c.reads(id, reply.File, true)
		return nil
	})
	w.Close()
	c.reads(id, r, err == nil)
	return err
}

// reads reads what a parcel's descriptor says, to its end. The kernel says that when nobody has the other end any more.
func (c *conversation) reads(id uint64, f *os.File, whole bool) {
	f.SetReadDeadline(time.Now().Add(2 * actTime))
	text, err := io.ReadAll(f)
	switch {
	case err != nil:
		c.find(openDescriptor, "parcel %x: after %q there is no end: %v", id, text, err)
	case whole && string(text) != strconv.FormatUint(id, 10), !whole && len(text) > 0 && string(text) != strconv.FormatUint(id, 10):
		c.find(wrongReply, "parcel %x: its descriptor says %q", id, text)
	}
}

// sum has a worker add numbers up.
func (c *conversation) sum() error {
	id := c.id()
	return c.do(sumAct, id, func(ctx context.Context) error {
		s, err := client.OpenStreaming[int64, int64](ctx, c.s, "sum", work{ID: id})
		if err != nil {
			return err
		}
		defer s.Close()
		var sum int64
		for n := range int64(1 + c.rnd.IntN(20)) {
			if err := s.Send(n); err != nil {
				return left(err)
			}
			sum += n
			got, err := s.Receive()
			if err != nil {
				return left(err)
			}
			if got != sum {
				c.find(wrongReply, "streaming call %x says %d, want %d", id, got, sum)
			}
		}
		err = s.CloseSend()
		if err == nil {
			_, err = s.Receive()
		}
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("streaming call %x goes on behind its end", id)
		}
		return left(err)
	})
}

// raw has a worker echo bytes.
func (c *conversation) raw() error {
	id := c.id()
	text := words(1 + c.rnd.IntN(100_000))
	return c.do(rawAct, id, func(ctx context.Context) error {
		s, err := c.s.OpenStream(ctx, "raw")
		if err != nil {
			return err
		}
		defer s.Close()
		defer context.AfterFunc(ctx, func() { s.Close() })()
		written := make(chan error, 1)
		go func() {
			_, err := s.Write(append(binary.BigEndian.AppendUint64(nil, id), text...))
			if err == nil {
				err = s.CloseWrite()
			}
			written <- err
		}()
		got, err := io.ReadAll(s)
		if err != nil {
			s.Close()
		}
		err = errors.Join(err, <-written)
		switch {
		case err != nil && ctx.Err() != nil:
			return left(ctx.Err())
		case err != nil:
			return left(err)
		case string(got) != text:
			c.find(wrongReply, "raw stream %x brings %d bytes back, of %d, or others", id, len(got), len(text))
		}
		return nil
	})
}

// left is the error of something that has left, at least in part.
func left(err error) error {
	e := *wire.AsError(err)
	e.Sent = true
	return &e
}
