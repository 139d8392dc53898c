package e2e_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of docs/security.md names tests that are there, and all that say which guard they hold.
func TestEachGuardOfTheSecurityDocumentHasItsTest(t *testing.T) {
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "<!-- guards -->\n")
	table, _, closed := strings.Cut(table, "<!-- /guards -->")
	if !found || !closed {
		t.Fatal("there is no table of guards")
	}
	test, guards := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`), regexp.MustCompile(`(?m)^// (?:.* )?(?:guard: |[Gg]uards? (?:is|are|for each) |Without the guard, ).*\n(?://.*\n)*func (Test\w+)`)
	there, holds := map[string]bool{}, map[string]bool{}
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range test.FindAllStringSubmatch(string(text), -1) {
			there[found[1]] = true
		}
		for _, found := range guards.FindAllStringSubmatch(string(text), -1) {
			holds[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(row), "|")
		if len(cells) != 5 {
			t.Errorf("not three cells: %s", row)
			continue
		}
		if name := strings.TrimSpace(cells[3]); strings.HasPrefix(name, "Test") {
			if named[name] = true; !there[name] {
				t.Errorf("no test is called %s", name)
			}
		}
	}
	if len(named) < 100 || len(holds) < 50 {
		t.Errorf("the table names %d tests, and %d tests say which guard they hold: that is too few to be all", len(named), len(holds))
	}
	for name := range holds {
		if !named[name] {
			t.Errorf("%s says which guard it holds, and the table does not name it", name)
		}
	}
}
