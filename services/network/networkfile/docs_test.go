package networkfile_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/doctable"
	"github.com/fairlead-dev/fairlead/services/network/networkfile"
)

const (
	docs       = "../../../docs/network.md"
	keysHeader = "| key | type | default | |\n| --- | --- | --- | --- |\n"
)

func TestTheDocumentationHasEveryKeyAsTheReaderKnowsIt(t *testing.T) {
	var want strings.Builder
	want.WriteString(keysHeader)
	for _, k := range networkfile.Keys() {
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", k.Name, k.Type, k.Default, k.Text)
	}
	doctable.Holds(t, docs, "keys", want.String())
}

// The whole file of the other test has every key, and each is documented.
func TestEveryKeyIsDocumentedAndEveryDocumentedKeyIsRead(t *testing.T) {
	documented := map[string]bool{}
	for _, k := range networkfile.Keys() {
		name := k.Name[strings.LastIndexByte(k.Name, '.')+1:]
		documented[name] = true
		if !regexp.MustCompile(`(?m)^` + name + ` = `).MatchString(whole) {
			t.Errorf("no file has %s", k.Name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^(\w+) = `).FindAllStringSubmatch(whole, -1) {
		if !documented[m[1]] && !slices.Contains([]string{"to", "via"}, m[1]) {
			t.Errorf("%s is not documented", m[1])
		}
	}
}

func TestTheExampleOfTheDocumentationIsTaken(t *testing.T) {
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```toml\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is none")
	}
	if config, problems := networkfile.Read(write(t, example)); len(problems) > 0 || len(config.Networks) != 1 {
		t.Errorf("it has %d networks, %v", len(config.Networks), problems)
	}
}
