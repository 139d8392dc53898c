package strictfile_test

import (
	"testing"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
)

const document = `top = 1
[table]
key = ["a",
  "b"]
inline = { x = 1, y = { z = 2 } }
[[many]]
name = "first"
[[many.parts]]
to = 1
[[many.parts]]
to = 2
[many.sub]
key = 3
[[many]]
name = "second"
parts = [ { to = 1 },
  { to = 2 } ]
"a.b" = 1
`

func TestEveryKeyHasItsLine(t *testing.T) {
	f := strictfile.New("file")
	if _, ok := f.Parse([]byte(document)); !ok {
		t.Fatal(f.Problems())
	}
	for path, want := range map[string]int{
		"top": 1, "table": 2, "table.key": 3, "table.key[0]": 3, "table.key[1]": 4, "table.inline.x": 5, "table.inline.y": 5,
		"many": 6, "many[0]": 6, "many[0].name": 7, "many[0].parts": 8, "many[0].parts[0]": 8, "many[0].parts[0].to": 9, "many[0].parts[1]": 10, "many[0].parts[1].to": 11,
		"many[0].sub": 12, "many[0].sub.key": 13, "many[1]": 14, "many[1].name": 15, "many[1].parts": 16, "many[1].parts[0].to": 16, "many[1].parts[1].to": 17, `many[1]."a.b"`: 18,
		"many[1].missing": 14, "many[1].parts[1].via": 17, "table.key[9]": 3, "nothing": 0,
	} {
		if got := f.Line(path); got != want {
			t.Errorf("%s is in line %d, want %d", path, got, want)
		}
	}
}

func TestProblemsComeInTheOrderOfTheLinesAndAreCounted(t *testing.T) {
	f := strictfile.New("file")
	f.Parse([]byte(document))
	for range 101 {
		f.Problem("table.key[1]", "is wrong")
	}
	f.Problem("top", "is wrong, too")
	list := f.Problems()
	if len(list) != 101 || list[0].Error() != "file:1: top: is wrong, too" || list[1].Error() != "file:4: table.key: is wrong" || list[100].Rule != "and 2 more problems" {
		t.Errorf("of %d the first are %v and %v, and the last is %v", len(list), list[0], list[1], list[len(list)-1])
	}
	if !f.Broken() || !f.Wrong("table.key") || f.Wrong("table") {
		t.Error("it does not know what is wrong")
	}
}

func TestAValueOfAnotherTypeIsTold(t *testing.T) {
	for text, want := range map[string]string{
		`v = "x"`: "want an integer, and this is a string", `v = 1.5`: "want an integer, and this is a float", `v = true`: "want an integer, and this is a boolean",
		`v = [1]`: "want an integer, and this is an array", `v = {a = 1}`: "want an integer, and this is a table", `v = 1979-05-27`: "want an integer, and this is a date or a time", `v = 1`: "",
	} {
		f := strictfile.New("file")
		values, _ := f.Parse([]byte(text))
		strictfile.Typed[int64](f, "v", values["v"])
		list := f.Problems()
		if (want == "") != (len(list) == 0) || want != "" && list[0].Rule != want {
			t.Errorf("%s: %v, want %q", text, list, want)
		}
	}
}
