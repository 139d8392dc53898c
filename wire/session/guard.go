package session

import (
	"encoding/binary"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// The parts of yamux's frames that are looked at. A header is: version, type, flags (2), stream id (4), length (4), big endian.
// See https://github.com/hashicorp/yamux/blob/master/spec.md.
const (
	yamuxHeader = 12
	yamuxData   = 0
	yamuxUpdate = 1
	yamuxPing   = 2
	yamuxGoAway = 3
	yamuxSYN    = 1
	yamuxFIN    = 4
	yamuxRST    = 8
	yamuxWindow = 256 << 10
)

const (
	// pingBurst is how many pings a peer may send at once. yamux starts a goroutine for each.
	pingBurst = 64
	// pingEvery is how often one more is due.
	pingEvery = time.Second
)

// A yamuxFrame is the header of a frame.
type yamuxFrame []byte

func (h yamuxFrame) kind() byte           { return h[1] }
func (h yamuxFrame) has(flag uint16) bool { return binary.BigEndian.Uint16(h[2:])&flag != 0 }
func (h yamuxFrame) id() uint32           { return binary.BigEndian.Uint32(h[4:]) }
func (h yamuxFrame) length() uint32       { return binary.BigEndian.Uint32(h[8:]) }

// A guard follows the frames that a peer sends and refuses, before yamux sees them, those that it would misread or pay too much for.
type guard struct {
	flows  *flows
	header [yamuxHeader]byte
	have   int    // bytes of the header that have come
	body   uint32 // bytes still to come of a data frame's body
	to     *flow  // the stream that the body is for; nil: none that is there

	pings int       // that may still come
	since time.Time // when pings was last raised
}

// look takes the next bytes that have come. An error is a breach of the protocol.
func (g *guard) look(b []byte) error {
	for len(b) > 0 {
		if g.body > 0 {
			n := min(len(b), int(g.body))
			b, g.body = b[n:], g.body-uint32(n)
			if err := g.flows.came(g.to, n); err != nil {
				return err
			}
			continue
		}
		n := copy(g.header[g.have:], b)
		b, g.have = b[n:], g.have+n
		if g.have == yamuxHeader {
			g.have = 0
			if err := g.frame(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *guard) frame() error {
	h := yamuxFrame(g.header[:])
	version, kind, length := h[0], h.kind(), h.length()
	switch {
	case version != 0:
		return wire.Errorf(wire.Unsupported, "read a frame: yamux version %d, want 0", version)
	case kind > yamuxGoAway:
		return wire.Errorf(wire.Malformed, "read a frame: unknown yamux type %d", kind)
	case kind == yamuxData && length > yamuxWindow:
		return wire.Errorf(wire.Malformed, "read a frame: %d bytes of data at once, limit %d", length, yamuxWindow)
	case kind == yamuxData || kind == yamuxUpdate:
		return g.stream(h)
	case kind == yamuxPing && h.has(yamuxSYN):
		return g.ping(time.Now())
	}
	return nil
}

// stream follows what a frame does to its stream.
func (g *guard) stream(h yamuxFrame) error {
	if h.has(yamuxSYN) {
		if err := g.flows.begins(h.id()); err != nil {
			return err
		}
	}
	g.to = g.flows.find(h.id())
	if h.has(yamuxFIN | yamuxRST) {
		g.flows.letGo(g.to)
	}
	if h.kind() == yamuxData {
		g.body = h.length()
	}
	return nil
}

func (g *guard) ping(now time.Time) error {
	if due := now.Sub(g.since) / pingEvery; due > 0 {
		g.pings = int(min(due+time.Duration(g.pings), pingBurst))
		g.since = now
	}
	if g.pings == 0 {
		return wire.Errorf(wire.OverQuota, "more than %d pings at once", pingBurst)
	}
	g.pings--
	return nil
}
