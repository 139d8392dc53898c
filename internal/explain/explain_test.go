package explain_test

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/doctable"
	"github.com/fairlead-dev/fairlead/internal/explain"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	docs        = "../../docs/operating.md"
	codesHeader = "| code | of an error | of the end of a session | usual cause | what to do |\n| --- | --- | --- | --- | --- |\n"
)

func TestTheDocumentationExplainsEveryCodeAsTheCommandDoes(t *testing.T) {
	var want strings.Builder
	want.WriteString(codesHeader)
	for _, c := range explain.Codes() {
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", c.Code, c.Means, cmp.Or(c.End, "–"), c.Cause, c.Do)
	}
	doctable.Holds(t, docs, "codes", want.String())
}

// declared returns the codes of package wire, from its source.
func declared(t *testing.T) (codes []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../wire/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, code)
		}
		return true
	})
	return codes
}

func TestEveryCodeOfTheProtocolIsExplainedOnce(t *testing.T) {
	want := declared(t)
	if len(want) < 20 {
		t.Fatalf("%d codes are declared: %v", len(want), want)
	}
	var have []string
	for _, c := range explain.Codes() {
		have = append(have, string(c.Code))
		for _, text := range []string{c.Means, c.Cause, c.Do} {
			if !strings.HasSuffix(text, ".") || strings.ContainsAny(text, "|\n") {
				t.Errorf("%s: %q is no sentence for a table", c.Code, text)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("explained are %v, want %v", have, want)
	}
}

func TestAMistypedCodeIsAnsweredWithTheNearest(t *testing.T) {
	if c, err := explain.Of("over_quota"); err != nil || c.Code != wire.OverQuota {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := explain.Of("over_qouta"); !errors.Is(err, wire.NotFound) || !strings.Contains(err.Error(), "is it over_quota?") {
		t.Error(err)
	}
	if _, err := explain.Of("\x1b[2J"); !errors.Is(err, wire.NotFound) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%q", err)
	}
}
