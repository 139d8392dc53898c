package wire

import "encoding/binary"

// Append appends the request as Marshal encodes it.
func (r *Request) Append(b []byte) []byte {
	at := len(b)
	b = append(b, 0x80) // a map, whose pairs are counted below
	b = appendString(append(b, 0xa1, 'm'), r.Method)
	if r.Within != 0 {
		b = appendInt(append(b, 0xa1, 'w'), r.Within)
		b[at]++
	}
	if len(r.Value) > 0 {
		b = append(append(b, 0xa1, 'v'), r.Value...)
		b[at]++
	}
	if r.Length != 0 {
		b = appendInt(append(b, 0xa1, 'n'), r.Length)
		b[at]++
	}
	b[at]++
	return b
}

// ParseRequest is Unmarshal for a request, whose value is then a part of b. One that is encoded as Append does costs the memory of its method's name, and not even
// that if it is known.
func ParseRequest(b []byte, known string) (Request, error) {
	if r, ok := parseRequest(b, known); ok {
		if err := Walk(b); err != nil {
			return Request{}, err
		}
		return r, r.Validate()
	}
	r := Request{}
	err := Unmarshal(b, &r)
	return r, err
}

// parseRequest reads a request that is encoded as Append does. Of another one, and of much that is malformed, it says that it is not ok.
func parseRequest(b []byte, known string) (r Request, ok bool) {
	if len(b) < 3 || b[0]&0xf0 != 0x80 || b[1] != 0xa1 || b[2] != 'm' {
		return r, false
	}
	pairs := b[0] & 0x0f
	method, b, ok := cutString(b[3:])
	if !ok || pairs == 0 {
		return r, false
	}
	if r.Method = known; string(method) != known {
		r.Method = string(method)
	}
	pairs--
	if pairs > 0 && hasKey(b, 'w') {
		if r.Within, b, ok = cutInt(b[2:]); !ok {
			return r, false
		}
		pairs--
	}
	switch {
	case pairs == 0:
		return r, len(b) == 0
	case pairs == 1 && hasKey(b, 'v') && len(b) > 2 && b[2] != 0xc0:
		r.Value = b[2:]
		return r, true
	case pairs == 1 && hasKey(b, 'n'):
		r.Length, b, ok = cutInt(b[2:])
		return r, ok && len(b) == 0
	}
	return r, false
}

// hasKey reports whether b begins with a key of one letter.
func hasKey(b []byte, key byte) bool { return len(b) >= 2 && b[0] == 0xa1 && b[1] == key }

// cutString takes a string off b.
func cutString(b []byte) (s, rest []byte, ok bool) {
	if len(b) == 0 || b[0] > 0xbf && b[0] != 0xd9 || b[0] < 0xa0 {
		return nil, nil, false
	}
	size, _, ok := shape(b)
	if !ok || size > uint64(len(b)) {
		return nil, nil, false
	}
	head := 1
	if b[0] == 0xd9 {
		head = 2
	}
	return b[head:size], b[size:], true
}

// cutInt takes an int that is not negative off b.
func cutInt(b []byte) (n int64, rest []byte, ok bool) {
	switch {
	case len(b) >= 1 && b[0] <= 0x7f:
		return int64(b[0]), b[1:], true
	case len(b) >= 2 && b[0] == 0xcc:
		return int64(b[1]), b[2:], true
	case len(b) >= 3 && b[0] == 0xcd:
		return int64(binary.BigEndian.Uint16(b[1:])), b[3:], true
	case len(b) >= 5 && b[0] == 0xce:
		return int64(binary.BigEndian.Uint32(b[1:])), b[5:], true
	}
	return 0, nil, false
}

// appendInt appends an int in its shortest form.
func appendInt(b []byte, n int64) []byte {
	switch {
	case n < 0: // which nobody may send
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
	case n <= 0x7f:
		return append(b, byte(n))
	case n <= 0xff:
		return append(b, 0xcc, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n <= 0xffff_ffff:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(n))
}

// appendString appends a string in its shortest form.
func appendString(b []byte, s string) []byte {
	switch n := len(s); {
	case n <= 31:
		b = append(b, 0xa0|byte(n))
	case n <= 0xff:
		b = append(b, 0xd9, byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}
