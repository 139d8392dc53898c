package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

// obvious returns what follows the msgpack value at the start of b, or false if there is none. It is the format's table, read aloud.
func obvious(b []byte, depth int) (rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, false
	}
	c, b := b[0], b[1:]
	skip := func(n uint64) ([]byte, bool) {
		if n > uint64(len(b)) {
			return nil, false
		}
		return b[n:], true
	}
	number := func(width int) (n uint64, ok bool) {
		if len(b) < width {
			return 0, false
		}
		for _, d := range b[:width] {
			n = n<<8 | uint64(d)
		}
		b = b[width:]
		return n, true
	}
	values := func(n uint64) ([]byte, bool) {
		if n > uint64(len(b)) || n > 0 && depth == wire.MaxDepth {
			return nil, false
		}
		for range n {
			if b, ok = obvious(b, depth+1); !ok {
				return nil, false
			}
		}
		return b, true
	}
	widths := map[byte]int{
		0xc4: 1, 0xc5: 2, 0xc6: 4, 0xc7: 1, 0xc8: 2, 0xc9: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4,
	}
	fixed := map[byte]uint64{
		0xc0: 0, 0xc2: 0, 0xc3: 0, 0xca: 4, 0xcb: 8, 0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, 0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8,
		0xd4: 2, 0xd5: 3, 0xd6: 5, 0xd7: 9, 0xd8: 17,
	}
	var n uint64
	if width, sized := widths[c]; sized {
		if n, ok = number(width); !ok {
			return nil, false
		}
	}
	switch {
	case c <= 0x7f, c >= 0xe0:
		return b, true
	case c <= 0x8f:
		return values(2 * uint64(c-0x80))
	case c <= 0x9f:
		return values(uint64(c - 0x90))
	case c <= 0xbf:
		return skip(uint64(c - 0xa0))
	case c == 0xc1:
		return nil, false
	case c >= 0xc7 && c <= 0xc9: // a type and then the bytes
		return skip(n + 1)
	case c == 0xdc, c == 0xdd:
		return values(n)
	case c == 0xde, c == 0xdf:
		return values(2 * n)
	case widths[c] > 0:
		return skip(n)
	}
	return skip(fixed[c])
}

func decodeHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// nested returns n arrays, each in the one before, around one number.
func nested(n int) []byte { return append(bytes.Repeat([]byte{0x91}, n), 1) }

// bombs are messages that claim more than they have, or nest deeper than anybody should follow.
var bombs = map[string][]byte{
	"nothing":                       {},
	"the byte that is never used":   {0xc1},
	"array of 4 Gi":                 {0xdd, 0xff, 0xff, 0xff, 0xff},
	"map of 4 Gi":                   {0xdf, 0xff, 0xff, 0xff, 0xff},
	"map of 64 Ki":                  {0xde, 0xff, 0xff},
	"text of 4 GiB":                 {0xdb, 0xff, 0xff, 0xff, 0xff},
	"bytes of 4 GiB":                {0xc6, 0xff, 0xff, 0xff, 0xff},
	"extension of 4 GiB":            {0xc9, 0xff, 0xff, 0xff, 0xff, 1},
	"extension without its type":    {0xc7, 0},
	"half a length":                 {0xdd, 0xff},
	"text that is one byte short":   {0xa3, 'a', 'b'},
	"bytes that are one byte short": {0xc4, 3, 1, 2},
	"array that is one value short": {0x92, 1},
	"map that is one value short":   {0x82, 1, 1, 1},
	"map that is one key short":     {0x81},
	"number that is one byte short": {0xcf, 1, 2, 3, 4, 5, 6, 7},
	"a byte after the message":      {0x80, 0},
	"two messages":                  {0x80, 0x80},
	"33 deep":                       nested(33),
	"1 MiB of arrays":               bytes.Repeat([]byte{0x91}, 1<<20),
	"1 MiB of maps":                 bytes.Repeat([]byte{0x81}, 1<<20),
	"a bomb in an unknown field":    append([]byte{0x81, 0xa1, '?'}, 0xdd, 0xff, 0xff, 0xff, 0xff),
	"depth in an unknown field":     append([]byte{0x81, 0xa1, '?'}, nested(32)...),
}

func TestWalkRefusesEveryBomb(t *testing.T) {
	for name, b := range bombs {
		if err := wire.Walk(b); !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v, want %v", name, err, wire.Malformed)
		}
		before := allocated()
		for _, v := range messages() {
			if err := wire.Unmarshal(b, v); !errors.Is(err, wire.Malformed) {
				t.Errorf("%s into %T: %v, want %v", name, v, err, wire.Malformed)
			}
		}
		if n := allocated() - before; n > 256<<10 {
			t.Errorf("%s: refusing it took %d bytes", name, n)
		}
	}
}

func TestWalkTakesWhatIsWellFormed(t *testing.T) {
	for _, s := range []string{
		"00", "7f", "e0", "ff", "c0", "c2", "c3", "80", "90", "a0", "cc ff", "cd ffff", "ce ffffffff", "cf ffffffffffffffff",
		"d0 80", "d1 8000", "d2 80000000", "d3 8000000000000000", "ca 00000000", "cb 0000000000000000",
		"d4 01 00", "d5 01 0000", "d6 01 00000000", "d7 01 0000000000000000", "d8 01 00000000000000000000000000000000",
		"c4 00", "c5 0000", "c6 00000000", "c7 00 01", "c8 0000 01", "c9 00000000 01", "d9 01 61", "da 0001 61", "db 00000001 61",
		"dc 0001 00", "dd 00000001 00", "de 0001 00 00", "df 00000001 00 00", "82 a1 61 93 01 02 03 a1 62 80",
		hex.EncodeToString(nested(32)),
		hex.EncodeToString(append(bytes.Repeat([]byte{0x91}, 32), 0x90)), // the empty one inside does not count
	} {
		if err := wire.Walk(decodeHex(t, s)); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestWalkAllocatesNothing(t *testing.T) {
	b := decodeHex(t, "83 a1 6d a4 65 63 68 6f a1 77 cd 07d0 a1 76 93 01 02 82 01 02 03 04")
	if n := testing.AllocsPerRun(100, func() {
		if err := wire.Walk(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnknownFieldsAreSkipped(t *testing.T) {
	// s and, around it, fields with a map in an array, an extension, bytes and a deep array.
	b := decodeHex(t, "85 a1 61 91 81 a1 62 c0 a1 73 d9 20 "+strings.Repeat("61", 32)+" a1 7a d4 05 00 a1 79 c4 01 ff a1 78")
	b = append(b, nested(31)...)
	var r wire.SessionRef
	if err := wire.Unmarshal(b, &r); err != nil || r.Session != strings.Repeat("a", 32) {
		t.Errorf("%+v, %v", r, err)
	}
}

// allocated returns how many bytes this process has ever allocated.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func TestALongListCostsLittleBeforeItIsRefused(t *testing.T) {
	list := func(field string, count int, value ...byte) []byte {
		b := append([]byte{0x81, 0xa1}, field...)
		b = append(b, 0xdd)
		b = binary.BigEndian.AppendUint32(b, uint32(count))
		return append(b, bytes.Repeat(value, count)...)
	}
	facts := []byte{0x81, 0xa1, 'f', 0xde, 0x50, 0x00}
	for i := range 0x5000 {
		facts = append(facts, 0xa2, byte(i>>8), byte(i), 0xa0)
	}
	const count = wire.MaxBody - 16
	for name, test := range map[string]struct {
		v any
		b []byte
	}{
		"empty sessions of a batch":        {&wire.Sessions{}, list("s", count, 0x80)},
		"nil sessions of a batch":          {&wire.Sessions{}, list("s", count, 0xc0)},
		"sessions with a client":           {&wire.Sessions{}, list("s", count/4, 0x81, 0xa1, 'c', 0x80)},
		"sessions with an end":             {&wire.Sessions{}, list("s", count/4, 0x81, 0xa1, 'x', 0x80)},
		"empty sessions of a registration": {&wire.Register{}, list("s", count, 0x80)},
		"endpoints":                        {&wire.Register{}, list("e", count, 0xa0)},
		"features of a registration":       {&wire.Register{}, list("f", count, 0xa0)},
		"features of an open":              {&wire.Open{}, list("f", count, 0xa0)},
		"features of a hand-over":          {&wire.HandOver{}, list("f", count, 0xa0)},
		"features that are used":           {&wire.Accepted{}, list("f", count, 0xa0)},
		"facts":                            {&wire.Notice{}, facts},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := wire.Unmarshal(test.b, test.v)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v, want %v", name, err, wire.Malformed)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
			t.Errorf("%s: %d bytes were allocated for %d", name, n, len(test.b))
		}
	}
}

func FuzzWalk(f *testing.F) {
	for _, b := range bombs {
		if len(b) < 1<<10 {
			f.Add(b)
		}
	}
	f.Add(nested(32))
	f.Add([]byte{0x82, 0xa1, 'm', 0xa4, 'e', 'c', 'h', 'o', 0xa1, 'v', 0xd4, 0xff, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		rest, ok := obvious(b, 0)
		want := ok && len(rest) == 0
		err := wire.Walk(b)
		if (err == nil) != want {
			t.Fatalf("%x: %v, but the table says %t", b, err, want)
		}
		if err != nil && !errors.Is(err, wire.Malformed) {
			t.Fatalf("%x: %v, want %v", b, err, wire.Malformed)
		}
		before := allocated()
		var anything any
		wire.Unmarshal(b, &anything)
		wire.Unmarshal(b, &struct{}{})
		wire.Unmarshal(b, &[]struct{ A, B, C string }{})
		if n, most := allocated()-before, uint64(1<<20+1<<10*len(b)); n > most {
			t.Fatalf("%x: decoding %d bytes allocated %d", b, len(b), n)
		}
	})
}
