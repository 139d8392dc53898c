package session

import (
	"encoding/binary"
	"time"

	"github.com/fairlead-dev/fairlead/internal/pace"
	"github.com/fairlead-dev/fairlead/wire"
)

// The parts of yamux's frames that are looked at. A header is: version, type, flags (2), stream id (4), length (4), big endian.
// See https://github.com/hashicorp/yamux/blob/master/spec.md.
const (
	yamuxVersion = 0
	yamuxHeader  = 12
	yamuxData    = 0
	yamuxUpdate  = 1
	yamuxPing    = 2
	yamuxGoAway  = 3
	yamuxSYN     = 1
	yamuxACK     = 2
	yamuxFIN     = 4
	yamuxRST     = 8
	yamuxWindow  = 256 << 10
)

const (
	// idleBurst is how many frames a peer may send at once that say nothing. No yamux sends any: each of them costs a look, and nothing else bounds their number.
	idleBurst = 4096
	// idleEvery is how often one more is due.
	idleEvery = time.Millisecond
	// pingBurst is how many pings are answered in each pingEach. What comes faster waits, with all that is behind it: each costs a microsecond, and some sessions that were flooded with
	// them would leave no time to the others of the process.
	pingBurst = 256
	pingEach  = 10 * time.Millisecond
)

// A yamuxFrame is the header of a frame.
type yamuxFrame []byte

func (h yamuxFrame) kind() byte           { return h[1] }
func (h yamuxFrame) has(flag uint16) bool { return binary.BigEndian.Uint16(h[2:])&flag != 0 }
func (h yamuxFrame) id() uint32           { return binary.BigEndian.Uint32(h[4:]) }
func (h yamuxFrame) length() uint32       { return binary.BigEndian.Uint32(h[8:]) }

func (h yamuxFrame) setLength(n int) { binary.BigEndian.PutUint32(h[8:], uint32(n)) }
func (h yamuxFrame) clear()          { binary.BigEndian.PutUint16(h[2:], 0) } // of its flags

// finish takes the FIN out of a frame with data, and returns it as a frame of its own. Other frames it leaves, and returns nil.
func (h yamuxFrame) finish() yamuxFrame {
	if h.kind() != yamuxData || h.length() == 0 || !h.has(yamuxFIN) {
		return nil
	}
	last := make(yamuxFrame, yamuxHeader)
	last[1] = yamuxUpdate
	binary.BigEndian.PutUint16(last[2:], yamuxFIN)
	copy(last[4:8], h[4:8])
	binary.BigEndian.PutUint16(h[2:], binary.BigEndian.Uint16(h[2:])&^yamuxFIN)
	return last
}

// A guard follows the frames that a peer sends and refuses, before yamux sees them, those that it would misread or pay too much for.
type guard struct {
	flows *flows
	pings pace.Brake
	idle  int       // frames that may still come
	since time.Time // when idle was last raised
}

// frame looks at the header of the next frame, and returns the stream that it is for; nil: none that is there. An error is a breach of the protocol.
func (g *guard) frame(h yamuxFrame) (*flow, error) {
	kind, length := h.kind(), h.length()
	switch {
	case kind > yamuxGoAway:
		return nil, wire.Errorf(wire.Malformed, "read a frame: unknown yamux type %d", kind)
	case kind == yamuxData && length > maxWindow:
		return nil, wire.Errorf(wire.Malformed, "read a frame: %d bytes of data at once, limit %d", length, maxWindow)
	case kind == yamuxData || kind == yamuxUpdate:
		return g.stream(h)
	case kind == yamuxPing && h.has(yamuxSYN):
		return nil, nil
	}
	return nil, g.idles(time.Now())
}

// stream follows what a frame does to its stream.
func (g *guard) stream(h yamuxFrame) (*flow, error) {
	if h.has(yamuxSYN) {
		if err := g.flows.begins(h.id()); err != nil {
			return nil, err
		}
	}
	to := g.flows.find(h.id())
	if h.has(yamuxFIN | yamuxRST) {
		g.flows.letGo(to)
	}
	if says := h.length() > 0 || h.has(yamuxSYN|yamuxACK|yamuxFIN|yamuxRST); to == nil || !says {
		return to, g.idles(time.Now())
	}
	return to, nil
}

// idles counts a frame that says nothing: of no stream, or of one of which it changes nothing.
func (g *guard) idles(now time.Time) error {
	if due := now.Sub(g.since) / idleEvery; due > 0 {
		g.idle = int(min(due+time.Duration(g.idle), idleBurst))
		g.since = now
	}
	if g.idle == 0 {
		return wire.Errorf(wire.OverQuota, "more than %d frames of yamux at once that say nothing", idleBurst)
	}
	g.idle--
	return nil
}

// pong returns the answer to a ping. yamux would start a goroutine for each.
func (h yamuxFrame) pong() (answer yamuxFrame, isPing bool) {
	if h.kind() != yamuxPing || !h.has(yamuxSYN) {
		return nil, false
	}
	answer = make(yamuxFrame, yamuxHeader)
	answer[1] = yamuxPing
	binary.BigEndian.PutUint16(answer[2:], yamuxACK)
	copy(answer[8:], h[8:]) // which ping it was
	return answer, true
}
