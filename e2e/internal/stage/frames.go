package stage

import (
	"bytes"
	"strings"

	"github.com/fairlead-dev/fairlead/wire"
)

// A WrongFrame is what a connection begins with that no client would send.
type WrongFrame struct {
	Name  string
	Bytes []byte
	Stay  bool // the connection stays open, and nothing more comes
	Code  wire.Code
}

// WrongFrames are all kinds of them. One without a code is closed without an answer.
func WrongFrames() []WrongFrame {
	header := func(h wire.Header) []byte { return h.Append(nil) }
	frame := func(kind wire.Kind, body string) []byte {
		return append(header(wire.Header{Kind: kind, Length: uint32(len(body))}), body...)
	}
	open := frame(wire.KindOpen, "\x81\xa1e\xa0")
	other := bytes.Clone(open)
	other[0] = 2
	return []WrongFrame{
		{Name: "nothing"},
		{Name: "nothing, and stays", Stay: true},
		{Name: "half a header", Bytes: open[:5]},
		{Name: "half a header, and stays", Bytes: open[:5], Stay: true},
		{Name: "half a body", Bytes: open[:14]},
		{Name: "half a body, and stays", Bytes: open[:14], Stay: true},
		{Name: "oversized", Bytes: header(wire.Header{Kind: wire.KindOpen, Length: wire.MaxBody + 1}), Code: wire.Malformed},
		{Name: "the longest length", Bytes: header(wire.Header{Kind: wire.KindOpen, Length: 1<<32 - 1}), Code: wire.Malformed},
		{Name: "a large body", Bytes: header(wire.Header{Kind: wire.KindLarge, Length: wire.MaxLarge}), Code: wire.Malformed},
		{Name: "HTTP", Bytes: []byte("GET / HTTP/1.1\r\nHost: broker\r\n\r\n"), Code: wire.Unsupported},
		{Name: "yamux", Bytes: append([]byte{0, 1, 0, 1}, make([]byte, 8)...), Code: wire.Unsupported},
		{Name: "another version", Bytes: other, Code: wire.Unsupported},
		{Name: "an unknown kind", Bytes: header(wire.Header{Kind: 99}), Code: wire.Malformed},
		{Name: "unknown flags", Bytes: header(wire.Header{Kind: wire.KindOpen, Flags: 0x80}), Code: wire.Malformed},
		{Name: "descriptors that are not there", Bytes: append([]byte{wire.Version, byte(wire.KindOpen), 3, 0}, make([]byte, 8)...), Code: wire.Malformed},
		{Name: "no first frame", Bytes: frame(wire.KindAccepted, "\x80"), Code: wire.Malformed},
		{Name: "an empty open", Bytes: frame(wire.KindOpen, ""), Code: wire.Malformed},
		{Name: "an open without an endpoint", Bytes: open, Code: wire.Malformed},
		{Name: "an array of four thousand million", Bytes: frame(wire.KindOpen, "\xdd\xff\xff\xff\xff"), Code: wire.Malformed},
		{Name: "a map of four thousand million", Bytes: frame(wire.KindRegister, "\xdf\xff\xff\xff\xff"), Code: wire.Malformed},
		{Name: "a long array within", Bytes: frame(wire.KindRegister, "\x81\xa1s\xdd\xff\xff\xff\xff"), Code: wire.Malformed},
		{Name: "a deep nest", Bytes: frame(wire.KindOpen, "\x81\xa1x"+strings.Repeat("\x91", 60000)), Code: wire.Malformed},
		{Name: "a wide array of arrays", Bytes: frame(wire.KindRegister, "\x81\xa1s\xdc\xea\x60"+strings.Repeat("\x80", 60000)), Code: wire.Malformed},
	}
}
