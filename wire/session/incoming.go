package session

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/pace"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	// readBuffer is how much is read from the socket at once while little comes.
	readBuffer = 4 << 10
	// streamBuffer is how much is read at once in the longReads reads behind one that was as long as readBuffer, as when a stream flows.
	streamBuffer = 64 << 10
	longReads    = 16
)

// maxArrivals is how many arrivals may wait: that of a frame whose header was cut, and that of the next frame.
const maxArrivals = 2

// An incoming takes apart what comes on a conn: it returns the frames of the lane and passes yamux's on. Only one goroutine uses it.
type incoming struct {
	conn   *conn
	mux    *mux
	lane   bool // else a frame of the lane, and any descriptor, is a breach
	guard  guard
	buf    []byte // of what has come, buf[r:w] was not taken; nil: nothing is there
	r, w   int
	read   int64            // bytes, since the beginning
	long   int              // how many reads may still be long
	socket *socket.Receiver // nil: the connection is none, or is closed
	files  []arrival
	breach error // of the peer: what comes after it cannot be taken apart
	failed error // of reading, while nobody had asked for a frame
}

// An arrival is the descriptors that came with one read. They belong to a frame that begins in its bytes: a read may begin with the end of a frame
// before, and returns the descriptors of one sendmsg at most.
type arrival struct {
	from, to int64 // of the bytes since the beginning
	files    []*os.File
	cut      bool // the kernel has dropped some of them
}

func (in *incoming) init(c *conn, m *mux, lane bool) {
	*in = incoming{conn: c, mux: m, lane: lane}
	in.guard.flows, in.guard.pings = &c.flows, pace.Brake{Most: pingBurst, Each: pingEach}
	if c.unix != nil {
		in.socket, _ = socket.NewReceiver(c.unix)
	}
}

// memories are for what has come: of readBuffer, and of streamBuffer.
var memories = [2]sync.Pool{
	{New: func() any { return new([readBuffer]byte) }},
	{New: func() any { return new([streamBuffer]byte) }},
}

// Lend has memory for what has come.
func (in *incoming) Lend() []byte {
	switch {
	case in.buf != nil:
	case in.long > 0:
		in.buf = memories[1].Get().(*[streamBuffer]byte)[:]
	default:
		in.buf = memories[0].Get().(*[readBuffer]byte)[:]
	}
	return in.buf
}

// TakeBack lets go of the memory, of which everything was taken and read.
func (in *incoming) TakeBack() {
	switch len(in.buf) {
	case streamBuffer:
		memories[1].Put((*[streamBuffer]byte)(in.buf))
	case readBuffer:
		memories[0].Put((*[readBuffer]byte)(in.buf))
	}
	in.buf, in.r, in.w = nil, 0, 0
}

// wait returns when something is there to be taken, or nothing will be. It is where an idle session waits: with few frames on its stack, and no memory.
func (in *incoming) wait() {
	if in.more() || in.breach != nil || in.failed != nil {
		return
	}
	in.mux.come.settle()
	in.TakeBack()
	in.w, in.failed = in.receive(nil)
}

// close closes what was not taken.
func (in *incoming) close() {
	for _, a := range in.files {
		socket.Discard(a.files)
	}
	in.files = nil
}

// next returns the next frame of the lane. A *wire.Error is what the peer did against the protocol; then next only waits for the end of what it sends.
// With any other error yamux has dealt with all that came before.
func (in *incoming) next() (arrived, error) {
	for in.breach == nil {
		in.wait()
		a, again, err := in.take()
		if _, breach := errors.AsType[*wire.Error](err); breach {
			in.breach = err
		} else if err != nil {
			in.mux.end(err)
		}
		if !again || err != nil {
			return a, err
		}
	}
	in.mux.come.settle()
	for {
		in.close()
		if _, err := in.receive(in.Lend()); err != nil {
			return arrived{}, err
		}
	}
}

// take takes the next frame. One that was yamux's has been passed on, and take is to be called again.
func (in *incoming) take() (a arrived, again bool, err error) {
	if err := in.fill(1); err != nil {
		return a, false, err
	}
	begins := in.at()
	if in.buf[in.r] == yamuxVersion {
		if err = in.passOn(); err == nil {
			err = in.unclaimed()
		}
		return a, true, err
	}
	if !in.lane && in.buf[in.r] == wire.Version {
		return a, false, wire.Errorf(wire.Unsupported, "a frame on the socket itself, and this session has no lane")
	}
	in.mux.come.settle() // so that yamux has what came before
	if a.Frame, err = in.frame(); err == nil {
		err = in.claim(&a, begins)
	}
	return a, false, err
}

// claim gives a frame its descriptors.
func (in *incoming) claim(a *arrived, begins int64) error {
	if a.Files > 0 {
		var came arrival
		if len(in.files) > 0 && in.files[0].from <= begins {
			came, in.files = in.files[0], in.files[1:]
		}
		if wrong := len(came.files) > int(a.Files) || len(came.files) < int(a.Files) && !came.cut; wrong {
			socket.Discard(came.files)
			return wire.Errorf(wire.Malformed, "%d descriptors came with a %v that says %d", len(came.files), a.Kind, a.Files)
		}
		a.files = came.files
		if came.cut {
			socket.Discard(a.files)
			a.files = nil
			a.missing = wire.Errorf(wire.OverQuota, "%d of %d descriptors arrived: raise the limit of open files", len(came.files), a.Files)
		}
	}
	if err := in.unclaimed(); err != nil {
		socket.Discard(a.files)
		return err
	}
	return nil
}

// unclaimed reports descriptors that came with bytes that have all been taken: no frame has said that they are its.
func (in *incoming) unclaimed() error {
	if len(in.files) == 0 || in.files[0].to > in.at() {
		return nil
	}
	return wire.Errorf(wire.Malformed, "%d descriptors came that no frame says", len(in.files[0].files))
}

// passOn hands a frame to yamux, which it starts with the first. Data that has not all come goes as frames of what has: yamux holds a mutex while it reads
// one, and deadlines of its stream would wait for the rest.
func (in *incoming) passOn() error {
	if err := in.fill(yamuxHeader); err != nil {
		return err
	}
	h := yamuxFrame(bytes.Clone(in.buf[in.r : in.r+yamuxHeader]))
	in.r += yamuxHeader
	to, err := in.guard.frame(h)
	if err == nil && h.has(yamuxSYN) {
		err = in.room()
	}
	if err == nil {
		err = in.mux.begin()
	}
	if err != nil {
		return err
	}
	if answer, ok := h.pong(); ok {
		in.guard.pings.Wait(in.conn.gone)
		in.conn.writeMux([][]byte{answer, nil})
		return nil
	}
	if h.has(yamuxACK) {
		defer in.conn.flows.acknowledged(to)
	}
	if h.kind() != yamuxData || h.length() == 0 {
		return in.mux.come.pass(h)
	}
	last := h.finish() // yamux would tell of the end before it has the data
	for left := int(h.length()); left > 0; {
		if err := in.fill(1); err != nil {
			in.mux.cut(unexpected(err)) // a stream may have begun that yamux does not know of
			return unexpected(err)
		}
		b := in.buf[in.r:min(in.w, in.r+left)]
		if err := in.room(); err != nil {
			return err
		}
		in.conn.flows.came(to, len(b))
		h.setLength(len(b))
		if err := in.mux.come.pass(h, b); err != nil {
			return err
		}
		in.r += len(b)
		if left -= len(b); left > 0 {
			h = bytes.Clone(h)
			h.clear() // it has begun its stream
		}
	}
	if last != nil {
		return in.mux.come.pass(last)
	}
	return nil
}

// room waits until the session's budget has room for what comes next. Until then all waits that the peer sends. What came before is with its readers, who can
// make room.
func (in *incoming) room() error {
	held := in.conn.held
	if held.full() == nil {
		return nil
	}
	in.mux.come.settle()
	in.conn.flows.giveEmpty()
	return held.await(in.conn.gone)
}

// more reports whether bytes have come that were not taken.
func (in *incoming) more() bool { return in.r < in.w }

// at returns how many bytes have been taken since the beginning.
func (in *incoming) at() int64 { return in.read - int64(in.w-in.r) }

// frame takes the next frame of the lane.
func (in *incoming) frame() (f wire.Frame, err error) {
	if err = in.fill(wire.HeaderSize); err != nil {
		return f, err
	}
	if f.Header, err = wire.ParseHeader(in.buf[in.r:in.w]); err != nil {
		return f, err
	}
	in.r += wire.HeaderSize
	if f.Kind == wire.KindLarge {
		return f, wire.Errorf(wire.Malformed, "read a frame: a %v where no large body belongs", f.Kind)
	}
	if adds := f.Kind == wire.KindRequest || f.Kind == wire.KindOneWay; adds {
		if err = in.room(); err != nil {
			return f, err
		}
	}
	if f.Length > 0 {
		f.Body, err = in.body(int(f.Length))
	}
	return f, err
}

// body takes the next n bytes.
func (in *incoming) body(n int) ([]byte, error) {
	b := make([]byte, n)
	at := copy(b, in.buf[in.r:in.w])
	in.r += at
	for at < n {
		got, err := in.receive(b[at:])
		at += got
		if err != nil && at < n {
			return nil, unexpected(err)
		}
	}
	return b, nil
}

// fill reads until n bytes are there to be taken, at most readBuffer. io.EOF comes only before the first.
func (in *incoming) fill(n int) error {
	for in.w-in.r < n {
		if in.r > 0 {
			in.mux.come.settle()
			in.w = copy(in.buf, in.buf[in.r:in.w])
			in.r = 0
		}
		in.Lend()
		got, err := in.receive(in.buf[in.w:])
		in.w += got
		if err != nil && in.w < n {
			if in.w > 0 {
				err = unexpected(err)
			}
			return err
		}
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// receive reads once into b, or, if that is nil, into memory that it is lent, and keeps the descriptors that come. Only who waits for the first byte of a frame, and so
// has lent memory, comes off the socket when the reader is kicked.
func (in *incoming) receive(b []byte) (n int, err error) {
	for {
		n, err = in.receiveOnce(b)
		if b == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !in.mux.s.unkick() {
			return n, err
		}
	}
}

func (in *incoming) receiveOnce(b []byte) (n int, err error) {
	var files []*os.File
	var flags int
	switch {
	case in.failed != nil:
		err, in.failed = in.failed, nil
		return 0, err
	case in.socket == nil && b == nil:
		n, err = in.conn.Conn.Read(in.Lend())
	case in.socket == nil:
		n, err = in.conn.Conn.Read(b)
	case b == nil:
		n, files, flags, err = in.socket.ReceiveLent(in)
	default:
		n, files, flags, err = in.socket.Receive(b)
	}
	if len(files) > 0 || flags&unix.MSG_CTRUNC != 0 {
		in.files = append(in.files, arrival{from: in.read, to: in.read + int64(n), files: files, cut: flags&unix.MSG_CTRUNC != 0})
	}
	in.read += int64(n)
	if in.long = max(in.long-1, 0); n >= readBuffer {
		in.long = longReads
	}
	in.conn.stats.received.Add(int64(n))
	switch {
	case len(in.files) > maxArrivals:
		return 0, wire.Errorf(wire.Malformed, "descriptors come that no frame says")
	case len(in.files) > 0 && !in.lane:
		return 0, errNoLane
	}
	return n, err
}
