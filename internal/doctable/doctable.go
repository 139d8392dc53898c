// Package doctable holds the tables of the documentation to what the code knows. It is for tests.
package doctable

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables that the code knows into the documentation")

// Holds checks that the file at path has want, whole lines, between the lines "<!-- name -->" and "<!-- /name -->". With -update it writes it there.
func Holds(t *testing.T, path, name, want string) {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("the table of %s in %s is not what the code knows: 'go test' in this package with -args -update writes it", name, path)
	}
	if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
