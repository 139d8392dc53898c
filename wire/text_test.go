package wire_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

func TestAValueIsReadableAndCannotSteerATerminal(t *testing.T) {
	for _, test := range []struct {
		v    any
		want string
	}{
		{nil, "nil"},
		{"hi\x1b[2J\n", `"hi\x1b[2J\n"`},
		{[]byte{1, 0xff}, "0x01ff"},
		{[]any{1, true, "x", nil}, `[1 true "x" nil]`},
		{map[string]any{"m": "echo", "v": map[string]any{"n": -3}}, `{"m":"echo" "v":{"n":-3}}`},
		{wire.Request{Method: "echo", Value: wire.Raw{0xa2, 'h', 'i'}}, `{"m":"echo" "v":"hi"}`},
		{map[string]any{}, "{}"},
	} {
		b, err := wire.Marshal(test.v)
		if err != nil {
			t.Fatal(err)
		}
		if got := wire.Text(b, 100); got != test.want {
			t.Errorf("%v: %s, want %s", test.v, got, test.want)
		}
	}
	for name, b := range map[string][]byte{
		"a map as a key":        {0x81, 0x80, 0xc0},
		"no value":              {0xc1},
		"cut":                   {0xa5, 'h'},
		"an extension":          {0xd4, 5, 1},
		"nothing":               {},
		"deeper than it may be": []byte(strings.Repeat("\x91", 40) + "\xc0"),
		"two values":            {0xc0, 0xc0},
		"nested too deep":       []byte(strings.Repeat("\x91", 100)),
		"a date, damaged":       {0xd7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"claims too much":       {0xdd, 0xff, 0xff, 0xff, 0xff},
		"long text":             append([]byte{0xda, 0x20, 0}, make([]byte, 0x2000)...),
		"a list of many":        append([]byte{0xdc, 0x20, 0}, make([]byte, 0x2000)...),
		"a key that is no text": {0x81, 0x01, 0x02},
	} {
		got := wire.Text(b, 100)
		if digits := strings.TrimSuffix(got, "…"); wire.Walk(b) != nil && !strings.HasPrefix(hex.EncodeToString(b), digits) { // guard: Walk in Text
			t.Errorf("%s: %s, want its bytes as they are", name, got)
		}
		if len(got) > 500 || strings.ContainsAny(got, "\n\x1b\x00") {
			t.Errorf("%s: %d bytes: %q", name, len(got), got)
		}
	}
}
