package wire_test

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

func TestATreeHasEveryKindOfValue(t *testing.T) {
	for s, want := range map[string]any{
		"":                                   nil,
		"c0":                                 nil,
		"c3":                                 true,
		"7f":                                 int64(127),
		"ff":                                 int64(-1),
		"cc ff":                              int64(255),
		"cf 7fffffffffffffff":                int64(math.MaxInt64),
		"cf 8000000000000000":                uint64(1 << 63),
		"d3 8000000000000000":                int64(math.MinInt64),
		"ca 3f800000":                        float32(1),
		"cb 3ff0000000000000":                1.0,
		"a1 61":                              "a",
		"c4 01 ff":                           []byte{0xff},
		"d6 ff 00000001":                     time.Unix(1, 0),
		"d7 ff 00000004 00000001":            time.Unix(1, 1),
		"c7 0c ff 00000001 ffffffffffffffff": time.Unix(-1, 1),
		"c7 03 ff 010203":                    wire.Ext{Type: -1, Data: []byte{1, 2, 3}}, // no timestamp
		"d4 0d 07":                           wire.Ext{Type: 13, Data: []byte{7}},
		"c7 00 05":                           wire.Ext{Type: 5, Data: []byte{}},
		"92 01 90":                           []any{int64(1), []any{}},
		"83 a1 62 01 01 c2 91 01 80":         wire.Map{{"b", int64(1)}, {int64(1), false}, {[]any{int64(1)}, wire.Map{}}},
		"82 a1 61 c0 a1 61 c0":               wire.Map{{"a", nil}, {"a", nil}}, // both of a key that comes twice
	} {
		got, err := wire.Tree(decodeHex(t, s))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, %v, want %#v", s, got, err, want)
		}
	}
}

func TestATreeRefusesEveryBomb(t *testing.T) {
	for name, b := range bombs {
		if _, err := wire.Tree(b); err == nil && len(b) > 0 {
			t.Errorf("%s: taken", name)
		}
	}
}

// FuzzTree: what can be walked has a tree, and Marshal takes that back.
func FuzzTree(f *testing.F) {
	for _, s := range []string{"c0", "83 a1 62 01 01 c2 91 01 80", "d7 ff 00000004 00000001", "c7 0c ff ffffffff ffffffffffffffff", "d4 05 00", "ca 7fc00001", "df 00000000"} {
		f.Add(decodeHex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if wire.Walk(b) != nil {
			return
		}
		v, err := wire.Tree(b)
		if err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		if hasExt(v) {
			return
		}
		again, err := wire.Marshal(v)
		if err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		w, err := wire.Tree(again)
		if err != nil {
			t.Fatalf("%x: %v", again, err)
		}
		if last, err := wire.Marshal(w); err != nil || !bytes.Equal(last, again) {
			t.Fatalf("%x became %x and then %x, %v", b, again, last, err)
		}
	})
}

func hasExt(v any) bool {
	switch v := v.(type) {
	case wire.Ext:
		return true
	case []any:
		return slices.ContainsFunc(v, hasExt)
	case wire.Map:
		return slices.ContainsFunc(v, func(p wire.Pair) bool { return hasExt(p.Key) || hasExt(p.Value) })
	}
	return false
}
