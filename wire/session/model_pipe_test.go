package session_test

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// A pipeEnd is one end of a connection in memory that behaves as a Unix socket does, and is built so that a bubble of synctest sees who waits.
type pipeEnd struct {
	in, out  *half
	closed   chan struct{}
	once     sync.Once
	halfGone atomic.Bool // CloseWrite came before Close
	wentAt   time.Time   // when Close came; written before closed is closed
}

// newPipe returns both ends of a connection. Faults are those of each direction, of which the first is that to the first end.
func newPipe(limit int, toFirst, toSecond *faults) (first, second *pipeEnd) {
	a, b := newHalf(limit, toFirst), newHalf(limit, toSecond)
	first = &pipeEnd{in: a, out: b, closed: make(chan struct{})}
	second = &pipeEnd{in: b, out: a, closed: make(chan struct{})}
	return first, second
}

// A half is one direction of a pipe.
type half struct {
	limit int // bytes that wait for the reader

	mu      sync.Mutex
	changed chan struct{} // closed when anything below has changed
	buf     []byte
	place   place // of the reader, between and in frames
	end     error // what the reader gets behind buf; nil: the writer is there
	gone    error // what the writer gets; nil: the reader is there
	readBy  time.Time
	writeBy time.Time
	*faults
}

func newHalf(limit int, f *faults) *half {
	return &half{limit: limit, changed: make(chan struct{}), faults: f}
}

func (h *half) signalLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// set changes the half and tells who waits.
func (h *half) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	h.signalLocked()
}

// cut has both see the end of the half: the reader when it has read what is there.
func (h *half) cut(end, gone error) {
	h.set(func() {
		if h.end == nil {
			h.end = end
		}
		if h.gone == nil {
			h.gone = gone
		}
	})
}

// A faults is what goes wrong in one direction. Its fields are guarded by the half's mutex, but for those that are atomic.
type faults struct {
	rnd        *rand.Rand
	slow       int           // of 100 reads and writes, how many are delayed
	short      int           // of 100 reads and writes, how many are short
	stallAt    int64         // after that many bytes the reader stands still
	stall      time.Duration // for so long; 0: not at all
	cutReadAt  int64         // after that many bytes reading fails; 0: never
	cutWriteAt int64         // after that many bytes writing fails; 0: never
	readError  error
	writeError error
	lost       func(what string) // is told that the connection breaks

	read, written int64
	injected      *atomic.Int64 // ns of all delays of the pipe
}

// delayLocked returns how long the next read or write is held up.
func (f *faults) delayLocked(reads bool) (d time.Duration) {
	if f.rnd.IntN(100) < f.slow {
		d = time.Duration(1+f.rnd.IntN(3)) * time.Millisecond
	}
	if reads && f.stall > 0 && f.read >= f.stallAt {
		d, f.stall = d+f.stall, 0
	}
	f.injected.Add(int64(d))
	return d
}

// someLocked returns n, or less.
func (f *faults) someLocked(n int) int {
	if n > 1 && f.rnd.IntN(100) < f.short {
		return 1 + f.rnd.IntN(n)
	}
	return n
}

// calm has nothing more go wrong.
func (h *half) calm() {
	h.set(func() { h.slow, h.short, h.stall, h.cutReadAt, h.cutWriteAt = 0, 0, 0, 0, 0 })
}

func (e *pipeEnd) Read(b []byte) (int, error) {
	delayed := false
	for {
		e.in.mu.Lock()
		n, err := e.in.readyLocked()
		deadline, changed := e.in.readBy, e.in.changed
		var d time.Duration
		switch {
		case e.isClosed():
			err, n = net.ErrClosed, 0
		case past(deadline):
			err, n = os.ErrDeadlineExceeded, 0
		case n > 0 && !delayed && e.in.place.mayRest():
			d, delayed = e.in.delayLocked(true), true
		}
		if d == 0 && n > 0 {
			n = e.in.takeLocked(b, n)
		}
		e.in.mu.Unlock()
		if d == 0 && (n > 0 || err != nil) {
			return n, err
		}
		e.rest(changed, deadline, d)
	}
}

// readyLocked returns how many bytes can be read, or why none ever can.
func (h *half) readyLocked() (int, error) {
	if h.cutReadAt > 0 && h.read >= h.cutReadAt {
		if h.end == nil || len(h.buf) > 0 {
			h.lost("read")
		}
		h.buf, h.end, h.gone = nil, h.readError, syscall.EPIPE
		h.signalLocked()
	}
	n := h.place.whole(h.buf)
	if h.end != nil {
		n = len(h.buf)
	}
	if h.cutReadAt > 0 {
		n = int(min(int64(n), h.cutReadAt-h.read))
	}
	if h.stall > 0 && h.stallAt > h.read {
		n = int(min(int64(n), h.stallAt-h.read))
	}
	if n == 0 && len(h.buf) == 0 {
		return 0, h.end
	}
	return n, nil
}

// takeLocked takes up to n bytes, or fewer.
func (h *half) takeLocked(b []byte, n int) int {
	n = h.someLocked(min(n, len(b)))
	copy(b, h.buf[:n])
	h.place.pass(h.buf[:n])
	h.buf = h.buf[n:]
	h.read += int64(n)
	h.signalLocked()
	return n
}

func (e *pipeEnd) Write(b []byte) (written int, err error) {
	e.out.mu.Lock()
	d := e.out.delayLocked(false)
	e.out.mu.Unlock()
	if d > 0 {
		e.rest(nil, time.Time{}, d)
	}
	for {
		e.out.mu.Lock()
		deadline, changed := e.out.writeBy, e.out.changed
		switch {
		case e.isClosed():
			err = net.ErrClosed
		case past(deadline):
			err = os.ErrDeadlineExceeded
		case e.out.gone != nil:
			err = e.out.gone
		default:
			written += e.out.putLocked(b[written:])
		}
		d = 0
		if written < len(b) {
			d = e.out.delayLocked(false)
		}
		broken := e.out.cutWriteAt > 0 && e.out.written >= e.out.cutWriteAt
		if broken && err == nil {
			e.out.cutWriteAt, err = 0, e.out.writeError
			e.out.lost("write")
		}
		e.out.mu.Unlock()
		if broken {
			e.cut()
		}
		if err != nil || written == len(b) {
			return written, err
		}
		e.rest(changed, deadline, d)
	}
}

// TryWrite writes what can be written without waiting. It does nothing where Write would be held up or fail.
func (e *pipeEnd) TryWrite(b []byte) int {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	broken := e.out.cutWriteAt > 0 && e.out.written >= e.out.cutWriteAt
	if e.isClosed() || past(e.out.writeBy) || e.out.gone != nil || broken || e.out.rnd.IntN(100) < e.out.slow {
		return 0
	}
	return e.out.putLocked(b)
}

// putLocked puts as much of b as there is room for, and no more than may leave before the connection breaks.
func (h *half) putLocked(b []byte) int {
	n := h.someLocked(max(0, min(len(b), h.limit-len(h.buf))))
	if h.cutWriteAt > 0 {
		n = int(min(int64(n), h.cutWriteAt-h.written))
	}
	if n > 0 {
		h.buf = append(h.buf, b[:n]...)
		h.written += int64(n)
		h.signalLocked()
	}
	return n
}

// rest waits for d if that is set, else for a change or the deadline. It ends when this end is closed.
func (e *pipeEnd) rest(changed <-chan struct{}, deadline time.Time, d time.Duration) {
	if d > 0 {
		changed = nil
	} else if !deadline.IsZero() {
		d = time.Until(deadline)
	}
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-changed:
	case <-timer:
	case <-e.closed:
	}
}

// cut breaks the connection for both ends, as when the process at the other one is gone. What is on its way can still be read.
func (e *pipeEnd) cut() {
	e.in.cut(io.EOF, syscall.EPIPE)
	e.out.cut(syscall.ECONNRESET, syscall.EPIPE)
}

func (e *pipeEnd) isClosed() bool {
	select {
	case <-e.closed:
		return true
	default:
		return false
	}
}

// Close lets the connection go. A peer that wrote what was never read gets a reset behind what it can still read, as from a Unix socket.
func (e *pipeEnd) Close() error {
	e.once.Do(func() {
		e.wentAt = time.Now()
		close(e.closed)
		end := io.EOF
		e.in.set(func() {
			if len(e.in.buf) > 0 {
				end = syscall.ECONNRESET
			}
			e.in.buf, e.in.gone = nil, syscall.EPIPE
		})
		e.out.cut(end, net.ErrClosed)
	})
	return nil
}

func (e *pipeEnd) CloseWrite() error {
	if e.isClosed() {
		return net.ErrClosed
	}
	e.halfGone.Store(true)
	e.out.cut(io.EOF, syscall.EPIPE)
	return nil
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.set(func() { e.in.readBy = t })
	return nil
}

func (e *pipeEnd) SetWriteDeadline(t time.Time) error {
	e.out.set(func() { e.out.writeBy = t })
	return nil
}

func (e *pipeEnd) SetDeadline(t time.Time) error {
	e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *pipeEnd) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (e *pipeEnd) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func past(deadline time.Time) bool { return !deadline.IsZero() && time.Until(deadline) <= 0 }

// A place follows the frames that a reader is given. yamux holds a mutex while it reads a body, and a bubble's time stands still while
// somebody waits for a mutex: so a yamux body is given as a whole, in reads of any length but without rest. Frames of the lane may be
// given in any pieces.
type place struct {
	header [wire.HeaderSize]byte
	have   int
	body   int
	lane   bool // the body is that of a frame on the lane
}

// mayRest reports whether the reader may be kept waiting here.
func (p *place) mayRest() bool { return p.body == 0 || p.lane }

// pass goes on over b.
func (p *place) pass(b []byte) {
	for len(b) > 0 {
		b = b[p.step(b):]
	}
}

// step goes on over the next part of a header or a body, and returns its length.
func (p *place) step(b []byte) (n int) {
	if p.body > 0 {
		n = min(len(b), p.body)
		p.body -= n
		return n
	}
	n = copy(p.header[p.have:], b)
	if p.have += n; p.have == len(p.header) {
		p.have = 0
		p.lane = p.header[0] == wire.Version
		if p.lane || p.header[1] == 0 { // yamux's data
			p.body = int(binary.BigEndian.Uint32(p.header[8:]))
		}
	}
	return n
}

// whole returns how much of b may be given to a reader that may then have to wait.
func (p place) whole(b []byte) (n int) {
	for at := 0; at < len(b); {
		if at += p.step(b[at:]); p.mayRest() {
			n = at
		}
	}
	return n
}
