package main_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	performance "github.com/fairlead-dev/fairlead/cmd/internal/performance"
)

func TestTheDocumentHasEveryTableOnce(t *testing.T) {
	text, err := os.ReadFile("../../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	names, err := performance.Marked(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(names); !slices.Equal(names, performance.Tables()) {
		t.Errorf("docs/performance.md has the tables %q, want %q", names, performance.Tables())
	}
}

func TestATableIsFilledAndAllElseStays(t *testing.T) {
	const text = "before\n<!-- table open -->\nold\n<!-- end -->\nbetween\n<!-- table calls -->\n<!-- end -->\nafter\n"
	got, err := performance.Fill(text, "open", "| new |\n")
	if want := strings.Replace(text, "old", "| new |", 1); err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	got, err = performance.Fill(text, "calls", "| new |\n")
	if want := strings.Replace(text, "calls -->\n", "calls -->\n| new |\n", 1); err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestADocumentThatIsWrongIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"<!-- table nothing -->\n<!-- end -->\n":                                 "nothing makes a table nothing",
		"<!-- table open -->\n":                                                  "has no end",
		"<!-- table open -->\n<!-- table calls -->\n<!-- end -->\n":              "has no end",
		"<!-- table open -->\n<!-- end -->\n<!-- table open -->\n<!-- end -->\n": "is there twice",
	} {
		if _, err := performance.Marked(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestWhatGoBenchmarksPrintIsRead(t *testing.T) {
	got, err := performance.Marks(`goos: linux
BenchmarkWalk/small-2         	  333235	        74.16 ns/op	 701.17 MB/s	       0 B/op	       0 allocs/op
BenchmarkBesideRaw/lane/one_caller-2  	       1	     64917 p50-ns	         1.75 p50/raw
BenchmarkCall/lane/large,_1_MB 	       1	  12190547 ns/op
PASS
`)
	if err != nil || len(got) != 3 || got["Walk/small"]["ns/op"] != 74.16 || got["BesideRaw/lane/one_caller"]["p50/raw"] != 1.75 || got["Call/lane/large,_1_MB"]["ns/op"] != 12190547 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNumbersHaveCommas(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", -100: "-100", -1234: "-1,234", 1234567.6: "1,234,568"} {
		if got := performance.Count(n); got != want {
			t.Errorf("%v shows as %s, want %s", n, got, want)
		}
	}
}
