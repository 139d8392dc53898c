package session

import (
	"sync"

	"github.com/fairlead-dev/fairlead/wire"
)

// maxKept is how long a buffer may be, in bytes, to be used again.
const maxKept = 4 << 10

// A buffer is memory for an encoded value, or for the body of a frame.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// takeBuffer returns an empty buffer, whose memory is the caller's until it gives it back.
func takeBuffer() *buffer {
	b := buffers.Get().(*buffer)
	b.b = b.b[:0]
	return b
}

// giveBack has the buffer used again, which may be nil. Nobody looks at its memory any more.
func (b *buffer) giveBack() {
	switch {
	case b == nil:
	case cap(b.b) <= maxKept:
		buffers.Put(b)
	case cap(b.b) == maxWrite:
		blocks.Put(b)
	}
}

// blocks are buffers of maxWrite, for what a stream writes.
var blocks = sync.Pool{New: func() any { return &buffer{make([]byte, 0, maxWrite)} }}

// bufferFor returns an empty buffer for some size bytes, which is the caller's until it gives it back.
func bufferFor(size int) *buffer {
	if size <= maxKept/2 {
		return takeBuffer()
	}
	b := blocks.Get().(*buffer)
	b.b = b.b[:0]
	return b
}

// frameBuffer returns a frame in a buffer that is the caller's until it gives it back.
func frameBuffer(f wire.Frame) *buffer {
	b := bufferFor(len(f.Body))
	b.b = f.Append(b.b)
	return b
}

var pendings = sync.Pool{New: func() any { return &pending{done: make(chan result, 1)} }}

// takePending returns a request that has not been given anything.
func takePending() *pending { return pendings.Get().(*pending) }

// giveBack has the request used again, if it was answered and its frame is nobody's any more.
func (p *pending) giveBack() {
	if p.out.written.Load() {
		*p = pending{done: p.done}
		pendings.Put(p)
	}
}
