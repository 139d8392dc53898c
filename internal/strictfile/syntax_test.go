package strictfile_test

import (
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
)

func TestWhatIsNoTOMLIsSaidInWordsThatNeedNoGrammar(t *testing.T) {
	for document, want := range map[string]string{
		"name = com.example.echo":      `1: no TOML: a text stands in quotes: want name = "…", and this is "com.example.echo"`,
		"a = 1\nname = \"x\nb = 2":     `2: no TOML: the text behind "name" has no quote at its end`,
		"name = 'x":                    `1: no TOML: the text behind "name" has no quote at its end`,
		`name = "x\"`:                  `1: no TOML: the text behind "name" has no quote at its end`,
		"run_at_load = True":           `1: no TOML: want true or false, in small letters, and this is "True"`,
		"run_at_load = yes":            `1: no TOML: want true or false, in small letters, and this is "yes"`,
		"name":                         `1: no TOML: want KEY = VALUE, and this is "name"`,
		"name: \"x\"":                  `1: no TOML: want KEY = VALUE, and this is`,
		"name =":                       `1: no TOML: "name" has no value behind =`,
		"\n\n[allow\nopen = [\"any\"]": `3: no TOML: the name of a table has no ] behind it`,
		"x = [":                        `1: no TOML: array is incomplete`, // as go-toml says it
		"a = \"\xff\"":                 `1: no TOML: the line is not UTF-8`,
		"\x1b[2J = x":                  `1: no TOML: `,
		"a = \x1b[2J":                  `1: no TOML: `,
	} {
		f := strictfile.New("f")
		if _, ok := f.Parse([]byte(document)); ok {
			t.Errorf("%q is TOML", document)
			continue
		}
		if got := f.Problems()[0].Error(); !strings.HasPrefix(got, "f:"+want) || strings.ContainsRune(got, '\x1b') {
			t.Errorf("%q: %q, want %q", document, got, want)
		}
	}
}
