package readme_test

import (
	"os"
	"strings"
	"testing"
)

func TestTheReadmesExamplesAreTheOnesThatAreCompiled(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("readme.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for i, block := range strings.Split(string(readme), "```") {
		code, isGo := strings.CutPrefix(block, "go\n")
		if i%2 == 0 || !isGo {
			continue
		}
		found++
		if !strings.Contains(string(source), strings.TrimSpace(code)) {
			t.Errorf("this example is not in readme.go:\n%s", code)
		}
	}
	if found != 3 {
		t.Errorf("%d examples, want 3", found)
	}
}
