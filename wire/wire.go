// Package wire is the protocol: frames, messages, error codes, and the bounds that are checked before anything is decoded.
// It is pure: it reads and writes bytes in memory, and starts nothing.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version is the protocol's version and the first byte of every frame. A yamux frame begins with 0, so the two can be told apart.
const Version = 1

const (
	// HeaderSize is the length of a frame's header in bytes.
	HeaderSize = 12
	// MaxBody is the longest body of a frame, in bytes.
	MaxBody = 64 << 10
	// MaxLarge is the longest body that travels on a stream of its own, in bytes.
	MaxLarge = 4 << 20
	// MaxFiles is the largest number of descriptors that belong to one frame.
	MaxFiles = 16
)

// A Kind says what a frame is.
type Kind uint8

// The frames before a session: each is the only one of its connection's side, or the first.
const (
	KindOpen     Kind = 1 // client to broker: Open
	KindRouted   Kind = 2 // broker to client: Routed, with the instance's pidfd where there is one
	KindAccepted Kind = 3 // instance to client, or broker to instance: Accepted
	KindRefused  Kind = 4 // Error
	KindRegister Kind = 5 // instance to broker: Register
)

// The frames of a session's message channel.
const (
	KindRequest Kind = 16 // Request
	KindReply   Kind = 17 // the reply's own value; with FlagError an Error
	KindCancel  Kind = 18 // no body: the request of this id is no longer wanted
	KindOneWay  Kind = 19 // Request without a time left
	KindNotice  Kind = 20 // Notice
	KindEnd     Kind = 21 // End: the last frame of its side
	KindFlush   Kind = 22 // no body: answered when all messages before it have been taken up
)

// The frames of every other stream.
const (
	KindStream Kind = 32 // first frame of a raw stream or a streaming call: Stream
	KindData   Kind = 33 // bytes of a raw stream
	KindFinish Kind = 34 // no body: the writer of a raw stream or a streaming call has written all
	KindLarge  Kind = 35 // a large body: its length may be up to MaxLarge
	KindItem   Kind = 36 // a value of a streaming call
)

var kindNames = [...]string{
	KindOpen: "open", KindRouted: "routed", KindAccepted: "accepted", KindRefused: "refused", KindRegister: "register",
	KindRequest: "request", KindReply: "reply", KindCancel: "cancel", KindOneWay: "one-way", KindNotice: "notice", KindEnd: "end", KindFlush: "flush",
	KindStream: "stream", KindData: "data", KindFinish: "finish", KindLarge: "large", KindItem: "item",
}

// String returns the kind's name, or its number if it has none.
func (k Kind) String() string {
	if k.known() {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

func (k Kind) known() bool { return int(k) < len(kindNames) && kindNames[k] != "" }

// Flags of a frame. Unknown flags are malformed.
const (
	// FlagError marks a reply whose body is an Error.
	FlagError uint8 = 1 << 0
	// FlagLarge marks a request or reply whose value follows on a stream of its own, and the cancel of a request whose value never will.
	// On a large body's own frame, FlagReply tells whose it is.
	FlagLarge uint8 = 1 << 1
	// FlagReply marks the large body of a reply; without it, it is a request's.
	FlagReply uint8 = 1 << 2

	knownFlags = FlagError | FlagLarge | FlagReply
)

// A Header begins every frame. Its bytes are: version, kind, files, flags, id (4, big endian), length (4, big endian).
type Header struct {
	Kind   Kind
	Files  uint8  // descriptors that belong to this frame, at most MaxFiles
	Flags  uint8  // Flag…
	ID     uint32 // of a request and what belongs to it; 0 elsewhere
	Length uint32 // of the body that follows, in bytes
}

// Append appends the header's bytes to b.
func (h Header) Append(b []byte) []byte {
	b = append(b, Version, byte(h.Kind), h.Files, h.Flags)
	b = binary.BigEndian.AppendUint32(b, h.ID)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// ParseHeader reads a header from the first HeaderSize bytes of b and checks its version, kind, flags and bounds.
// It fails with Unsupported for another version and with Malformed otherwise.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, Errorf(Malformed, "read a frame: header of %d bytes, want %d", len(b), HeaderSize)
	}
	if b[0] != Version {
		return Header{}, Errorf(Unsupported, "read a frame: protocol version %d, want %d", b[0], Version)
	}
	h := Header{Kind: Kind(b[1]), Files: b[2], Flags: b[3], ID: binary.BigEndian.Uint32(b[4:]), Length: binary.BigEndian.Uint32(b[8:])}
	limit := uint32(MaxBody)
	if h.Kind == KindLarge {
		limit = MaxLarge
	}
	switch {
	case !h.Kind.known():
		return h, Errorf(Malformed, "read a frame: unknown %v", h.Kind)
	case h.Flags&^knownFlags != 0:
		return h, Errorf(Malformed, "read a frame: %v with unknown flags %#x", h.Kind, h.Flags)
	case h.Files > MaxFiles:
		return h, Errorf(Malformed, "read a frame: %v with %d descriptors, limit %d", h.Kind, h.Files, MaxFiles)
	case h.Length > limit:
		return h, Errorf(Malformed, "read a frame: %v of %d bytes, limit %d", h.Kind, h.Length, limit)
	}
	return h, nil
}

// A Frame is a header and its body.
type Frame struct {
	Header
	Body []byte
}

// NewFrame encodes v as the body of a frame; a nil v is no body. It fails with OverQuota if the body is longer than MaxBody.
func NewFrame(kind Kind, id uint32, v any) (Frame, error) {
	f := Frame{Header: Header{Kind: kind, ID: id}}
	if v == nil {
		return f, nil
	}
	body, err := Marshal(v)
	if err != nil {
		return f, err
	}
	if len(body) > MaxBody {
		return f, Errorf(OverQuota, "write a frame: %v of %d bytes, limit %d", kind, len(body), MaxBody)
	}
	f.Body, f.Length = body, uint32(len(body))
	return f, nil
}

// Append appends the frame's bytes to b.
func (f Frame) Append(b []byte) []byte { return append(f.Header.Append(b), f.Body...) }

// ReadAhead is what a reader of frames needs of its source: exactly n bytes, or an error.
type ReadAhead func(n int) ([]byte, error)

// ReadFrame reads one frame by asking next for exactly the header's and then the body's bytes. End of file before the body is
// io.ErrUnexpectedEOF. A large body is refused: whoever takes one reads it by itself.
func ReadFrame(next ReadAhead) (Frame, error) {
	b, err := next(HeaderSize)
	if err != nil {
		return Frame{}, err
	}
	h, err := ParseHeader(b)
	if err == nil && h.Kind == KindLarge {
		err = Errorf(Malformed, "read a frame: a %v where no large body belongs", h.Kind)
	}
	if err != nil || h.Length == 0 {
		return Frame{Header: h}, err
	}
	body, err := next(int(h.Length))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return Frame{Header: h, Body: body}, err
}
