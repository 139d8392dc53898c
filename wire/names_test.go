package wire_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fairlead-dev/fairlead/wire"
)

func TestNamesAreLettersDigitsAndDashesInParts(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "com.example.echo": true, "fairlead.broker": true, "A-Z_0.9": true, "-": true, "_": true, "0": true,
		strings.Repeat("a", wire.MaxEndpoint):   true,
		strings.Repeat("a", wire.MaxEndpoint+1): false,
		"":                                      false, ".": false, "..": false, "a.": false, ".a": false, "a..b": false,
		"a b": false, "a/b": false, "../a": false, "a\x00": false, "a\n": false, "ä": false, "a\xff": false, "\u202ea": false, "a:b": false, "a%": false,
	} {
		if err := wire.CheckName(name); (err == nil) != ok || err != nil && !errors.Is(err, wire.Malformed) {
			t.Errorf("%q: %v, want it well-formed: %t", name, err, ok)
		}
	}
}

func TestAnIDIs32LowerCaseHexadecimalDigits(t *testing.T) {
	for name, ok := range map[string]bool{
		strings.Repeat("0", 32): true, strings.Repeat("f", 32): true, id: true,
		"": false, strings.Repeat("0", 31): false, strings.Repeat("0", 33): false, strings.Repeat("F", 32): false, strings.Repeat("g", 32): false,
		strings.Repeat("0", 15) + "/" + strings.Repeat("0", 16): false, strings.Repeat("0", 31) + "\n": false, strings.Repeat("ä", 16): false,
	} {
		if err := wire.CheckID(name); (err == nil) != ok || err != nil && !errors.Is(err, wire.Malformed) {
			t.Errorf("%q: %v, want it well-formed: %t", name, err, ok)
		}
	}
}

func TestFactsAreFewAndShort(t *testing.T) {
	many := func(n int) map[string]string {
		facts := map[string]string{}
		for i := range n {
			facts[fmt.Sprint(i)] = ""
		}
		return facts
	}
	long := strings.Repeat("x", wire.MaxFact)
	for i, test := range []struct {
		facts map[string]string
		ok    bool
	}{
		{nil, true}, {many(wire.MaxFacts), true}, {many(wire.MaxFacts + 1), false}, {map[string]string{long: long}, true},
		{map[string]string{long + "x": ""}, false}, {map[string]string{"x": long + "x"}, false}, {map[string]string{"": "x"}, false},
	} {
		if err := wire.CheckFacts(test.facts); (err == nil) != test.ok || err != nil && !errors.Is(err, wire.OverQuota) {
			t.Errorf("%d: %v, want it allowed: %t", i, err, test.ok)
		}
	}
}

func TestPrintableEscapesWhatSteersATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"web server 1":        "web server 1",
		"größer 世界":           "größer 世界",
		"a\nb":                `a\nb`,
		"a\rb":                `a\rb`,
		"a\tb":                `a\tb`,
		"\x1b[2J":             `\x1b[2J`,
		"\x1b]0;title\x07":    `\x1b]0;title\a`,
		"\u009b2J":            `\u009b2J`,
		"\x00":                `\x00`,
		"\x7f":                `\x7f`,
		"\xff":                `\xff`,
		"\u202egnp.exe":       `\u202egnp.exe`,
		"zero\u200bwidth":     `zero\u200bwidth`,
		"line\u2028separator": `line\u2028separator`,
		"\U000e0041":          `\U000e0041`,
	} {
		if got := wire.Printable(in, 100); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	for _, test := range []struct {
		in   string
		n    int
		want string
	}{{"abcdef", 6, "abcdef"}, {"abcdef", 5, "abcde…"}, {"aä", 2, `a\xc3…`}, {"ab", 0, "…"}} {
		if got := wire.Printable(test.in, test.n); got != test.want {
			t.Errorf("%q of %d bytes: %q, want %q", test.in, test.n, got, test.want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b[2J", 100)
	f.Add("größer", 4)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		got := wire.Printable(s, max(limit, 0))
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0x2028 }) {
			t.Errorf("%q: %q", s, got)
		}
	})
}
