package wire

import "encoding/binary"

// MaxDepth is how deep a message's arrays and maps may be nested. Empty ones do not count.
const MaxDepth = 32

// Walk checks that b is exactly one msgpack value whose nesting is at most MaxDepth and whose every claimed length fits in b.
// It allocates nothing unless it fails. Everything is walked before it is decoded: the decoder allocates what a length claims, and recurses
// as deep as the sender likes. It fails with Malformed.
func Walk(b []byte) error { return walk(b, uint64(len(b))) }

// walk is Walk that also refuses an array of more than most values, and a map of more than most pairs.
func walk(b []byte, most uint64) error {
	var open [MaxDepth]uint64 // values still to come at each level
	depth := 0
	for at := 0; ; {
		if at >= len(b) {
			return Errorf(Malformed, "decode: the message ends early at byte %d", at)
		}
		skip, values, ok := shape(b[at:])
		left := uint64(len(b) - at)
		if !ok || skip > left || values > left-skip {
			return Errorf(Malformed, "decode: the value at byte %d claims more than the message has", at)
		}
		if values > most && (values > 2*most || !isMap(b[at])) {
			return Errorf(Malformed, "decode: the value at byte %d has more than %d items", at, most)
		}
		at += int(skip)
		if values > 0 {
			if depth == MaxDepth {
				return Errorf(Malformed, "decode: nested deeper than %d", MaxDepth)
			}
			open[depth] = values
			depth++
			continue
		}
		for depth > 0 {
			if open[depth-1]--; open[depth-1] > 0 {
				break
			}
			depth--
		}
		if depth == 0 {
			if at != len(b) {
				return Errorf(Malformed, "decode: %d bytes after the message", len(b)-at)
			}
			return nil
		}
	}
}

func isMap(c byte) bool { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }

// shape returns how many bytes the value at the start of b takes up itself, and how many values follow that belong to it.
// It is not ok if b is too short to tell, or begins with the one byte that msgpack never uses.
// The format is that of https://github.com/msgpack/msgpack/blob/master/spec.md.
func shape(b []byte) (size, values uint64, ok bool) {
	c := b[0]
	switch {
	case c <= 0x7f || c >= 0xe0: // fixint
		return 1, 0, true
	case c <= 0x8f: // fixmap
		return 1, 2 * uint64(c&0x0f), true
	case c <= 0x9f: // fixarray
		return 1, uint64(c & 0x0f), true
	case c <= 0xbf: // fixstr
		return 1 + uint64(c&0x1f), 0, true
	}
	switch c {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return 1, 0, true
	case 0xcc, 0xd0: // 8 bits
		return 2, 0, true
	case 0xcd, 0xd1:
		return 3, 0, true
	case 0xca, 0xce, 0xd2:
		return 5, 0, true
	case 0xcb, 0xcf, 0xd3:
		return 9, 0, true
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // fixext 1, 2, 4, 8, 16
		return 2 + 1<<(c-0xd4), 0, true
	case 0xc4, 0xd9: // bin 8, str 8
		return sized(b, 1, 0)
	case 0xc5, 0xda:
		return sized(b, 2, 0)
	case 0xc6, 0xdb:
		return sized(b, 4, 0)
	case 0xc7: // ext 8
		return sized(b, 1, 1)
	case 0xc8:
		return sized(b, 2, 1)
	case 0xc9:
		return sized(b, 4, 1)
	case 0xdc, 0xdd: // array 16, 32
		size, n, ok := counted(b, 2<<(c-0xdc))
		return size, n, ok
	case 0xde, 0xdf: // map 16, 32
		size, n, ok := counted(b, 2<<(c-0xde))
		return size, 2 * n, ok
	}
	return 0, 0, false
}

// sized is the shape of bytes with a length of width bytes, plus extra bytes before them.
func sized(b []byte, width int, extra uint64) (size, values uint64, ok bool) {
	head, n, ok := counted(b, width)
	return head + extra + n, 0, ok
}

// counted reads the big-endian number of width bytes after the first byte.
func counted(b []byte, width int) (head, n uint64, ok bool) {
	if len(b) < 1+width {
		return 0, 0, false
	}
	switch width {
	case 1:
		n = uint64(b[1])
	case 2:
		n = uint64(binary.BigEndian.Uint16(b[1:]))
	default:
		n = uint64(binary.BigEndian.Uint32(b[1:]))
	}
	return uint64(1 + width), n, true
}
