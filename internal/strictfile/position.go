package strictfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/fairlead-dev/fairlead/wire"
)

// deepest is how many parts of a key have a line of their own, each perhaps with an index. A path of every part would cost a hostile file's
// length squared. The deepest that is known is quota.users.NAME.KEY.
const deepest = 4

// lines are where the keys of a document are, by their path: "stop_timeout", "allow.open", "program[0]", "network[2].routes[0].to".
type lines map[string]int

// linesOf finds the lines in a document that go-toml takes. A table has the line of its first mention.
func linesOf(document []byte) lines {
	l := locator{lines: lines{}, tables: map[string]int{}}
	for i, c := range document {
		if c == '\n' {
			l.newlines = append(l.newlines, i)
		}
	}
	var p unstable.Parser
	p.Reset(document)
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			l.table = l.header(e)
		case unstable.KeyValue:
			l.pair(l.table, e)
		}
	}
	return l.lines
}

// A locator walks through a document.
type locator struct {
	lines    lines
	newlines []int          // their offsets
	tables   map[string]int // how many tables there are in an array of tables, by its path
	table    []string       // of the header above
}

// header notes a header with all its parts, and returns its path. An array of tables stands for its last one.
func (l *locator) header(e *unstable.Node) []string {
	var path []string
	for parts := e.Key(); parts.Next() && len(path) < deepest; {
		path = append(path, l.part(path, parts.Node()))
		at := strings.Join(path, ".")
		if e.Kind == unstable.ArrayTable && parts.IsLast() {
			l.tables[at]++
		}
		if n := l.tables[at]; n > 0 {
			path[len(path)-1] = Index(path[len(path)-1], n-1)
			l.note(strings.Join(path, "."), parts.Node().Raw.Offset)
		}
	}
	return path
}

// pair notes a key and what its value consists of.
func (l *locator) pair(table []string, pair *unstable.Node) {
	path := table[:len(table):len(table)]
	for parts := pair.Key(); parts.Next() && len(path) < deepest; {
		path = append(path, l.part(path, parts.Node()))
	}
	if len(path) < deepest {
		l.value(path, pair.Value())
	}
}

// part notes the part of a key that follows a path, and returns it.
func (l *locator) part(path []string, part *unstable.Node) string {
	name := ShowKey(string(part.Data))
	l.note(strings.Join(append(path[:len(path):len(path)], name), "."), part.Raw.Offset)
	return name
}

// value notes the elements of an array and the keys of inline tables.
func (l *locator) value(path []string, v *unstable.Node) {
	for i, children := 0, v.Children(); children.Next(); i++ {
		child := children.Node()
		if v.Kind == unstable.InlineTable {
			l.pair(path, child)
			continue
		}
		if v.Kind != unstable.Array {
			continue
		}
		element := slices.Clone(path)
		element[len(element)-1] = Index(element[len(element)-1], i)
		if child.Raw.Length > 0 {
			l.note(strings.Join(element, "."), child.Raw.Offset)
		}
		if child.Kind == unstable.InlineTable {
			l.value(element, child)
		}
	}
}

// note enters a path, unless it has been there before.
func (l *locator) note(path string, offset uint32) {
	if _, known := l.lines[path]; !known {
		before, _ := slices.BinarySearch(l.newlines, int(offset))
		l.lines[path] = before + 1
	}
}

// of returns the line of a path, or of what it is in; 0 for what is not there.
func (l lines) of(path string) int {
	for {
		if line, ok := l[path]; ok {
			return line
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return 0
		}
		path = path[:i]
	}
}

// Index returns the path of an element of an array.
func Index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// KeyOf returns the key that a path is shown under, without the index of the element at its end: the rule says which it is.
func KeyOf(path string) string {
	if i := strings.LastIndexByte(path, '['); i > 0 && strings.HasSuffix(path, "]") {
		return path[:i]
	}
	return path
}

// ShowKey returns one part of a key as TOML has it: bare, or in quotes. It is cut where it is long, and can be printed as it is.
func ShowKey(part string) string {
	bare := part != "" && len(part) <= shown && !strings.ContainsFunc(part, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
	if bare {
		return part
	}
	return strconv.Quote(wire.Cut(part, shown))
}
