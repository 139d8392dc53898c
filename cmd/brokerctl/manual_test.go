package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
)

func TestTheManualPageHasEveryCommandAndEveryFlag(t *testing.T) {
	page, err := os.ReadFile("../../docs/man/brokerctl.1")
	must(t, err)
	var has []string
	for _, m := range regexp.MustCompile(`(?m)^\.It Cm ([a-z |]+)`).FindAllStringSubmatch(string(page), -1) {
		noun, verbs, _ := strings.Cut(strings.TrimSpace(m[1]), " ")
		for verb := range strings.SplitSeq(verbs, "|") {
			has = append(has, strings.TrimSpace(noun+" "+strings.TrimSpace(verb)))
		}
	}
	for _, v := range brokerctl.Verbs() {
		if !slices.Contains(has, v.Name) {
			t.Errorf("brokerctl.1 does not say what %s does", v.Name)
		}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z-]+)`).FindAllStringSubmatch(v.Help, -1) {
			if !regexp.MustCompile(`Fl -` + m[1] + `\b`).Match(page) {
				t.Errorf("brokerctl.1 has no --%s, which %s takes", m[1], v.Name)
			}
		}
	}
}

// mdoc takes quotes away from what stands on a macro's line.
func TestTheExamplesOfTheManualPagesAreShownAsTheyAreTyped(t *testing.T) {
	pages, err := filepath.Glob("../../docs/man/*.[18]")
	must(t, err)
	if len(pages) != 3 {
		t.Errorf("there are %q", pages)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must(t, err)
		_, examples, found := strings.Cut(string(text), "\n.Sh EXAMPLES\n")
		examples, _, _ = strings.Cut(examples, "\n.Sh ")
		if !found || strings.Count(examples, "\nbroker") == 0 {
			t.Errorf("%s has no examples", page)
		}
		for line := range strings.Lines(examples) {
			if strings.HasPrefix(line, ".") && strings.ContainsAny(line, `"'`) {
				t.Errorf("%s loses the quotes of %q", page, line)
			}
		}
	}
}
