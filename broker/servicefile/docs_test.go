package servicefile_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/doctable"
)

const (
	docs       = "../../docs/services.md"
	keysHeader = "| key | type | default | | in launchd.plist |\n| --- | --- | --- | --- | --- |\n"
)

func TestTheDocumentationHasEveryKeyAsTheReaderKnowsIt(t *testing.T) {
	var want strings.Builder
	want.WriteString(keysHeader)
	for _, k := range servicefile.Keys() {
		launchd := cmp.Or(k.Launchd, "–")
		if k.Differs != "" {
			launchd += ". " + k.Differs
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", k.Name, k.Type, k.Default, k.Text, launchd)
	}
	doctable.Holds(t, docs, "keys", want.String())
}
