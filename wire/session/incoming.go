package session

import (
	"bytes"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/pace"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	// readBuffer is how much is read from the socket at once while there are no streams.
	readBuffer = 4 << 10
	// streamBuffer is how much is read at once when there are.
	streamBuffer = 32 << 10
)

// maxArrivals is how many arrivals may wait: that of a frame whose header was cut, and that of the next frame.
const maxArrivals = 2

// An incoming takes apart what comes on a conn: it returns the frames of the lane and passes yamux's on. Only one goroutine uses it.
type incoming struct {
	conn   *conn
	mux    *mux
	lane   bool // else a frame of the lane, and any descriptor, is a breach
	guard  guard
	buf    []byte // of what has come, buf[r:w] was not taken
	r, w   int
	read   int64            // bytes, since the beginning
	socket *socket.Receiver // nil: the connection is none, or is closed
	files  []arrival
	breach error // of the peer: what comes after it cannot be taken apart
}

// An arrival is the descriptors that came with one read. They belong to a frame that begins in its bytes: a read may begin with the end of a frame
// before, and returns the descriptors of one sendmsg at most.
type arrival struct {
	from, to int64 // of the bytes since the beginning
	files    []*os.File
	cut      bool // the kernel has dropped some of them
}

func (in *incoming) init(c *conn, m *mux, lane bool) {
	*in = incoming{conn: c, mux: m, lane: lane, buf: make([]byte, readBuffer)}
	in.guard.flows, in.guard.pings = &c.flows, pace.Brake{Most: pingBurst, Each: pingEach}
	if c.unix != nil {
		in.socket, _ = socket.NewReceiver(c.unix)
	}
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
	for {
		in.close()
		if _, err := in.receive(in.buf); err != nil {
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
		err = in.conn.flows.await(in.conn.gone)
	}
	if err == nil {
		err = in.mux.start()
	}
	if err != nil {
		return err
	}
	if answer, ok := h.pong(); ok {
		in.guard.pings.Wait(in.conn.gone)
		in.conn.writeMux(answer)
		return nil
	}
	if h.has(yamuxACK) {
		defer in.conn.flows.acknowledged(to)
	}
	if h.kind() != yamuxData || h.length() == 0 {
		return in.mux.pass(h)
	}
	last := h.finish() // yamux would tell of the end before it has the data
	for left := int(h.length()); left > 0; {
		if err := in.fill(1); err != nil {
			in.mux.cut(unexpected(err)) // a stream may have begun that yamux does not know of
			return unexpected(err)
		}
		b := in.buf[in.r:min(in.w, in.r+left)]
		if err := in.conn.flows.await(in.conn.gone); err != nil {
			return err
		}
		in.conn.flows.came(to, len(b))
		h.setLength(len(b))
		if err := in.mux.pass(h); err != nil {
			return err
		}
		if err := in.mux.pass(b); err != nil {
			return err
		}
		h.clear() // it has begun its stream
		in.r += len(b)
		left -= len(b)
	}
	if last != nil {
		return in.mux.pass(last)
	}
	return nil
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
		if err = in.conn.flows.await(in.conn.gone); err != nil {
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
			in.w = copy(in.buf, in.buf[in.r:in.w])
			in.r = 0
		}
		if in.w == 0 && len(in.buf) < streamBuffer && in.mux.started() {
			in.buf = make([]byte, streamBuffer)
		}
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

// receive reads once, and keeps the descriptors that come.
func (in *incoming) receive(b []byte) (n int, err error) {
	if in.socket == nil {
		n, err = in.conn.Conn.Read(b)
	} else {
		var files []*os.File
		var flags int
		if n, files, flags, err = in.socket.Receive(b); len(files) > 0 || flags&unix.MSG_CTRUNC != 0 {
			in.files = append(in.files, arrival{from: in.read, to: in.read + int64(n), files: files, cut: flags&unix.MSG_CTRUNC != 0})
		}
	}
	in.read += int64(n)
	in.conn.stats.received.Add(int64(n))
	switch {
	case len(in.files) > maxArrivals:
		return 0, wire.Errorf(wire.Malformed, "descriptors come that no frame says")
	case len(in.files) > 0 && !in.lane:
		return 0, errNoLane
	}
	return n, err
}
