package session

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

// A link carries the frames of a message channel. One goroutine at a time reads it and one writes it.
type link interface {
	// wait returns when read has something to return, or soon will.
	wait()
	// read returns the next frame. io.EOF means that the peer writes no more.
	read() (arrived, error)
	// more reports whether more has come than was read.
	more() bool
	// direct reports whether try may ever write anything.
	direct() bool
	// try writes what it can of a frame without waiting. With its first byte its descriptors have left, too. One that was begun and is not whole is the first
	// of the next write.
	try(o *outgoing) (whole, begun bool)
	// write writes whole frames, and the rest of one that was begun; only a single one may have descriptors. An unsentError says that this one was not written,
	// and others can be.
	write(batch []*outgoing) error
	// finish writes the last frame, unless it is nil, behind all that the conn has taken, also of streams, and tells the peer that nothing more is written.
	finish(last *wire.Frame) error
}

// An arrived frame is one that has come, with its descriptors, which whoever takes it owns.
type arrived struct {
	wire.Frame
	files   []*os.File
	missing error // why they did not all arrive; it is the message's failure, and not the session's
}

// A laneLink is the socket itself.
type laneLink struct{ conn *conn }

func (l laneLink) read() (arrived, error)              { return l.conn.in.next() }
func (l laneLink) wait()                               { l.conn.in.wait() }
func (l laneLink) more() bool                          { return l.conn.in.more() }
func (l laneLink) direct() bool                        { return l.conn.try != nil }
func (l laneLink) try(o *outgoing) (whole, begun bool) { return l.conn.tryLane(o) }
func (l laneLink) write(batch []*outgoing) error       { return l.conn.writeLane(batch) }
func (l laneLink) finish(last *wire.Frame) error       { return l.conn.finish(last) }

// A streamLink is a yamux stream.
type streamLink struct {
	stream *flow
	conn   *conn
	r      *bufio.Reader
	burst  bool // a long frame was read: yamux keeps its buffer until it is told to shrink it
	buf    []byte
}

func newStreamLink(stream *yamux.Stream, c *conn) *streamLink {
	f := c.flows.claim(stream)
	return &streamLink{stream: f, conn: c, r: bufio.NewReaderSize(f, 4096)}
}

func (l *streamLink) read() (arrived, error) {
	if l.burst && l.r.Buffered() == 0 {
		l.stream.Shrink()
		l.burst = false
	}
	f, err := readFrame(l.r)
	l.burst = l.burst || len(f.Body) > maxChunk/2
	if err == nil && f.Files > 0 {
		err = wire.Errorf(wire.Unsupported, "read a %v: it says %d descriptors, and this session carries none", f.Kind, f.Files)
	}
	return arrived{Frame: f}, err
}

// readFrame reads one frame from r.
func readFrame(r io.Reader) (wire.Frame, error) {
	return wire.ReadFrame(func(n int) ([]byte, error) {
		if n <= readBuffer {
			b := make([]byte, n)
			_, err := io.ReadFull(r, b)
			return b, err
		}
		var b bytes.Buffer // its memory is taken as it comes
		_, err := io.CopyN(&b, r, int64(n))
		return b.Bytes(), err
	})
}

func (l *streamLink) wait()      {}
func (l *streamLink) more() bool { return l.r.Buffered() > 0 }

// A stream waits for its reader, whoever writes it.
func (l *streamLink) direct() bool                      { return false }
func (l *streamLink) try(*outgoing) (whole, begun bool) { return false, false }

func (l *streamLink) write(batch []*outgoing) error {
	l.buf = appendFrames(l.buf[:0], batch)
	err := l.conn.writeStream(context.Background(), l.stream, l.buf)
	if cap(l.buf) > maxChunk {
		l.buf = nil
	}
	return err
}

// What the conn takes leaves in its order.
func (l *streamLink) finish(last *wire.Frame) error {
	if last != nil {
		if err := l.write([]*outgoing{{frame: *last}}); err != nil {
			return err
		}
	}
	return l.stream.Stream.Close()
}

func appendFrames(b []byte, batch []*outgoing) []byte {
	for _, o := range batch {
		b = o.frame.Append(b)
	}
	return b
}
