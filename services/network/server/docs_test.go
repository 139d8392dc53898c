package server_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/explain"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// A page is what docs/network.md says of the endpoint.
type page struct {
	t       *testing.T
	d       *schema.Description
	text    string
	methods map[string]string              // their sections
	types   map[string]map[string][]string // of each type, by what the page calls it: the columns of its keys' rows
}

// readPage reads the page. Each method has a section there, each type a table of its keys: that of a request in the method's section.
func readPage(t *testing.T, d *schema.Description) *page {
	t.Helper()
	text, err := os.ReadFile("../../../docs/network.md")
	if err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, d: d, methods: map[string]string{}, types: map[string]map[string][]string{}}
	_, p.text, _ = strings.Cut(string(text), "\n## The endpoint\n")
	p.text, _, _ = strings.Cut(p.text, "\n## ")
	for i, section := range strings.Split(p.text, "\n### ") {
		name, body, _ := strings.Cut(section, "\n")
		if i > 0 {
			p.methods[name] = body
		}
		for of, rows := range tables(body) {
			p.types[strings.TrimSpace(strings.TrimPrefix(of, "key of "))] = rows
			if of == "key" {
				p.types["request of "+name] = rows
			}
		}
	}
	return p
}

// tables returns the tables of a text whose first column is a key, by the head of that column, and their rows by their keys.
func tables(text string) map[string]map[string][]string {
	all := map[string]map[string][]string{}
	for table := range strings.SplitSeq(text, "\n\n") {
		lines := strings.Split(strings.TrimSpace(table), "\n")
		head := cells(lines[0])
		if len(head) < 2 || !strings.HasPrefix(head[0], "key") {
			continue
		}
		rows := map[string][]string{}
		for _, line := range lines[2:] {
			for key := range strings.SplitSeq(cells(line)[0], ", ") { // some share a row
				rows[key] = cells(line)
			}
		}
		all[head[0]] = rows
	}
	return all
}

func cells(line string) (list []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		list = append(list, strings.TrimSpace(cell))
	}
	return list
}

// follow goes down to the struct that a type has, through lists and what may be missing; nil: it has none.
func (p *page) follow(i int) *schema.Type {
	for t := &p.d.Types[i]; ; t = &p.d.Types[t.Elem] {
		switch t.Kind {
		case schema.Struct:
			return t
		case schema.List, schema.Optional:
		default:
			return nil
		}
	}
}

// holds checks that the table of a type has its keys, no others, and that what these have in them is documented, too.
func (p *page) holds(i int, table string) {
	p.t.Helper()
	typ := p.follow(i)
	if typ == nil || len(typ.Fields) == 0 {
		return
	}
	rows := p.types[table]
	documented := slices.Sorted(maps.Keys(rows))
	if want := keysOf(typ); !slices.Equal(documented, want) {
		p.t.Errorf("%s: the page has the keys %v, and the service %v", table, documented, want)
	}
	for _, f := range typ.Fields {
		inner := p.follow(f.Type)
		if inner == nil || len(rows[f.Key]) < 2 {
			continue
		}
		cell := rows[f.Key][1]
		if _, in, found := strings.Cut(cell, "{"); found { // a small one stands where it is used
			in, _, _ = strings.Cut(in, "}")
			got := strings.Split(in, ", ")
			slices.Sort(got)
			if !slices.Equal(got, keysOf(inner)) {
				p.t.Errorf("%s: key %s is %q, and has the keys %v", table, f.Key, cell, keysOf(inner))
			}
			continue
		}
		if name := strings.Trim(cell, "[]"); name != nameOf(inner) {
			p.t.Errorf("%s: key %s is %q, want %s", table, f.Key, cell, nameOf(inner))
		}
		p.holds(f.Type, nameOf(inner))
	}
}

func keysOf(typ *schema.Type) (keys []string) {
	for _, f := range typ.Fields {
		keys = append(keys, f.Key)
	}
	slices.Sort(keys)
	return keys
}

// nameOf returns what the page calls a type.
func nameOf(typ *schema.Type) string { return strings.TrimSuffix(typ.Name, "Info") }

func TestTheDocumentationHasEveryMethodWithItsKeysItsErrorsAndAnExample(t *testing.T) {
	p := readPage(t, description(t))
	kinds := map[string]string{"call": "request", "one-way": "one-way", "streaming call": "streaming call"}
	for _, m := range p.d.Methods {
		section := p.methods[m.Name]
		if section == "" {
			t.Errorf("%s has no section", m.Name)
			continue
		}
		delete(p.methods, m.Name)
		if !strings.Contains(p.text, "| ["+m.Name+"](#"+m.Name+") | "+kinds[m.Kind]+" | ") {
			t.Errorf("%s, a %s, is not so in the table of the methods", m.Name, m.Kind)
		}
		p.holds(m.Request, "request of "+m.Name)
		answer := max(m.Reply, m.Out)
		if typ := p.follow(answer); typ != nil {
			p.holds(answer, nameOf(typ))
		}
		if codes := codesIn(section); len(codes) == 0 && m.Kind != "one-way" {
			t.Errorf("%s says nothing of its errors", m.Name)
		}
		p.example(m, section)
	}
	for name := range p.methods {
		t.Errorf("the page has %s, and the service has not", name)
	}
}

// codesIn returns the codes of errors that a section names: in a table, or in the text.
func codesIn(section string) (found []wire.Code) {
	known := map[wire.Code]bool{}
	for _, c := range explain.Codes() {
		known[c.Code] = true
	}
	for _, m := range regexp.MustCompile("`([a-z_]+)`|(?m)^\\| ([a-z_]+) \\|").FindAllStringSubmatch(section, -1) {
		if code := wire.Code(m[1] + m[2]); known[code] {
			found = append(found, code)
		}
	}
	return found
}

// example checks that a method's example has a request, and all that is in it keys of the request or of the answer.
func (p *page) example(m schema.Method, section string) {
	p.t.Helper()
	_, rest, _ := strings.Cut(section, "\n```\n")
	text, _, found := strings.Cut(rest, "\n```")
	if !found {
		p.t.Errorf("%s has no example", m.Name)
		return
	}
	known := map[string]bool{}
	for _, i := range []int{m.Request, m.Reply, m.Out} {
		if typ := p.follow(i); typ != nil {
			for _, key := range keysOf(typ) {
				known[key] = true
			}
		}
	}
	values := 0
	for line := range strings.Lines(strings.ReplaceAll(text, "\n ", " ")) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		values++
		for _, key := range outerKeys(line) {
			if !known[key] {
				p.t.Errorf("the example of %s has the key %q: %s", m.Name, key, line)
			}
		}
	}
	if values == 0 {
		p.t.Errorf("the example of %s has no value", m.Name)
	}
}

// outerKeys returns the keys of the object at the beginning of a line. What is left out of it stands there as a mark.
func outerKeys(line string) (keys []string) {
	depth := 0
	for _, m := range regexp.MustCompile(`[{\[]|[}\]]|"[^"]*"(:?)`).FindAllStringSubmatch(line, -1) {
		switch {
		case strings.ContainsAny(m[0][:1], "{["):
			depth++
		case strings.ContainsAny(m[0][:1], "}]"):
			depth--
		case depth == 1 && m[1] == ":":
			keys = append(keys, strings.Trim(m[0], `":`))
		}
	}
	return keys
}
