package servicefile_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
)

var update = flag.Bool("update", false, "write the table of keys into docs/services.md")

const (
	docs       = "../../docs/services.md"
	keysBegin  = "<!-- keys -->\n"
	keysEnd    = "<!-- /keys -->"
	keysHeader = "| key | type | default | | in launchd.plist |\n| --- | --- | --- | --- | --- |\n"
)

func TestTheDocumentationHasEveryKeyAsTheReaderKnowsIt(t *testing.T) {
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), keysBegin)
	table, after, closed := strings.Cut(rest, keysEnd)
	if !found || !closed {
		t.Fatalf("%s has no %q and %q", docs, keysBegin, keysEnd)
	}
	var want strings.Builder
	want.WriteString(keysHeader)
	for _, k := range servicefile.Keys() {
		launchd := cmp.Or(k.Launchd, "–")
		if k.Differs != "" {
			launchd += ". " + k.Differs
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", k.Name, k.Type, k.Default, k.Text, launchd)
	}
	if table == want.String() {
		return
	}
	if !*update {
		t.Fatalf("the table of keys in %s is not the reader's: 'go test ./broker/servicefile -run Documentation -args -update' writes it", docs)
	}
	if err := os.WriteFile(docs, []byte(before+keysBegin+want.String()+keysEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
