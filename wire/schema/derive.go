package schema

import (
	"encoding"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/fairlead-dev/fairlead/wire"
)

// Types are derived from Go types, by the rules that msgpack encodes them by. What cannot be described, or is beyond a bound, is Any. The zero Types is ready.
type Types struct {
	list   []Type
	seen   map[reflect.Type]int
	fields int
}

// All returns the types, for a Description.
func (ts *Types) All() []Type {
	ts.begin()
	return ts.list
}

// Of returns the index of a Go type; that of nil is 0.
func (ts *Types) Of(t reflect.Type) int {
	ts.begin()
	if t == nil {
		return 0
	}
	if i, known := ts.seen[t]; known {
		return i
	}
	i := ts.add(t)
	ts.seen[t] = i
	return i
}

func (ts *Types) begin() {
	if ts.seen == nil {
		ts.list, ts.seen = []Type{{Kind: Any}}, map[reflect.Type]int{}
	}
}

func (ts *Types) add(t reflect.Type) int {
	switch {
	case t == reflect.TypeFor[*os.File]():
		return ts.plain(Type{Kind: Descriptor})
	case t == reflect.TypeFor[time.Time]():
		return ts.plain(Type{Kind: Time})
	case t == reflect.TypeFor[wire.Time]():
		return ts.plain(Type{Kind: UnixTime})
	case t.Kind() == reflect.Pointer:
		return ts.pointer(t)
	}
	if kind, own := encodesItself(t); own {
		return ts.plain(Type{Kind: kind})
	}
	switch t.Kind() {
	case reflect.Bool:
		return ts.plain(Type{Kind: Bool})
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return ts.plain(Type{Kind: Int, Bits: t.Bits()})
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return ts.plain(Type{Kind: Uint, Bits: t.Bits()})
	case reflect.Float32, reflect.Float64:
		return ts.plain(Type{Kind: Float, Bits: t.Bits()})
	case reflect.String:
		return ts.plain(Type{Kind: String})
	case reflect.Slice, reflect.Array:
		return ts.sequence(t)
	case reflect.Map:
		return ts.composite(t, func() Type { return Type{Kind: Dict, Key: ts.Of(t.Key()), Elem: ts.Of(t.Elem())} })
	case reflect.Struct:
		return ts.composite(t, func() Type { return ts.structure(t) })
	}
	return 0
}

// plain returns the index of a type that refers to no composite one that is still being derived.
func (ts *Types) plain(t Type) int {
	same := func(o Type) bool {
		return o.Kind == t.Kind && o.Bits == t.Bits && o.Len == t.Len && o.Key == t.Key && o.Elem == t.Elem && o.Kind != Struct
	}
	if i := slices.IndexFunc(ts.list, same); i >= 0 {
		return i
	}
	if len(ts.list) == MaxTypes {
		return 0
	}
	ts.list = append(ts.list, t)
	return len(ts.list) - 1
}

// composite keeps a place for a type before those that it refers to are derived: it may be among them.
func (ts *Types) composite(t reflect.Type, derive func() Type) int {
	if len(ts.list) == MaxTypes {
		return 0
	}
	i := len(ts.list)
	ts.list = append(ts.list, Type{Kind: Any})
	ts.seen[t] = i
	derived := derive()
	ts.list[i] = derived
	return i
}

func (ts *Types) pointer(t reflect.Type) int {
	for hops := 0; t.Kind() == reflect.Pointer && t != reflect.TypeFor[*os.File](); hops++ {
		if t = t.Elem(); hops == 8 { // it may point to itself
			return 0
		}
	}
	i := ts.Of(t)
	if k := ts.list[i].Kind; i == 0 || k == Optional || k == Descriptor {
		return i
	}
	return ts.plain(Type{Kind: Optional, Elem: i})
}

func (ts *Types) sequence(t reflect.Type) int {
	most := 0
	if t.Kind() == reflect.Array {
		if most = t.Len(); most == 0 { // which Len cannot say
			return 0
		}
	}
	if t.Elem().Kind() == reflect.Uint8 {
		return ts.plain(Type{Kind: Bytes, Len: most})
	}
	return ts.composite(t, func() Type { return Type{Kind: List, Len: most, Elem: ts.Of(t.Elem())} })
}

func (ts *Types) structure(t reflect.Type) Type {
	list, ok := members(t, 0)
	if ts.fields += len(list); !ok || ts.fields > MaxFields {
		return Type{Kind: Any}
	}
	s := Type{Kind: Struct, Name: wire.Cut(t.Name(), MaxName)}
	taken := map[string]bool{}
	for _, m := range list {
		name := m.name
		if taken[name] {
			name = m.key
		}
		if taken[name] || len(name) > MaxName || len(m.key) > MaxName {
			return Type{Kind: Any}
		}
		taken[name] = true
		s.Fields = append(s.Fields, Field{Key: m.key, Name: name, Type: ts.Of(m.typ)})
	}
	return s
}

// A member is a field as it travels.
type member struct {
	key, name string
	typ       reflect.Type
}

// maxEmbedded is how deep structs are embedded in each other.
const maxEmbedded = 8

// members returns the fields of a struct that travel: those of embedded structs are its own. It is not ok for a struct that does not travel as a map.
func members(t reflect.Type, depth int) (list []member, ok bool) {
	if depth > maxEmbedded {
		return nil, false
	}
	add := func(m member) { // of a key that comes twice the last counts
		list = append(slices.DeleteFunc(list, func(o member) bool { return o.key == m.key }), m)
	}
	for f := range t.Fields() {
		key, options := tagged(f.Tag.Get("msgpack"))
		if f.Name == "_msgpack" && (slices.Contains(options, "as_array") || slices.Contains(options, "asArray")) {
			return nil, false
		}
		if key == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous && !slices.Contains(options, "noinline") {
			inner, inlined, ok := embedded(f.Type, list, slices.Contains(options, "inline"), depth)
			if !ok {
				return nil, false
			}
			if inlined {
				list = append(list, inner...)
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		m := member{key: key, name: jsonName(f), typ: f.Type}
		if key == "" {
			m.key = f.Name
		}
		if slices.Contains(options, "intern") {
			m.typ = nil
		}
		add(m)
	}
	return list, true
}

// embedded returns the fields of an embedded field's own struct, unless that travels as a field: as no struct does, and one that shares a key with those before
// it unless it is said to be inlined, when they go first.
func embedded(t reflect.Type, before []member, inline bool, depth int) (inner []member, inlined, ok bool) {
	for hops := 0; t.Kind() == reflect.Pointer && hops < maxEmbedded; hops++ {
		t = t.Elem()
	}
	if _, own := encodesItself(t); own || t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[os.File]() {
		return nil, false, true
	}
	inner, ok = members(t, depth+1)
	if !ok {
		return nil, false, false
	}
	shadowed := func(m member) bool { return slices.ContainsFunc(before, func(o member) bool { return o.key == m.key }) }
	if inline {
		return slices.DeleteFunc(inner, shadowed), true, true
	}
	return inner, !slices.ContainsFunc(inner, shadowed), true
}

// tagged splits a msgpack tag.
func tagged(tag string) (name string, options []string) {
	name, rest, _ := strings.Cut(tag, ",")
	if strings.Contains(name, ":") { // it is an option
		return "", nil
	}
	return name, strings.Split(rest, ",")
}

// jsonName is what a field is called in JSON.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" || name == "-" {
		return snake(f.Name)
	}
	return name
}

// snake is a Go name in snake case: http_server of HTTPServer.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && runes[i-1] != '_' {
			begins := i+1 < len(runes) && unicode.IsLower(runes[i+1]) // a word after one in capitals
			if !unicode.IsUpper(runes[i-1]) || begins {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// encodesItself reports whether values of a type that is no pointer are encoded by a method of the type's own, and what they then are. msgpack looks for
// these methods in this order.
func encodesItself(t reflect.Type) (Kind, bool) {
	p := reflect.PointerTo(t) // has those of t, too
	_, encodes := p.MethodByName("EncodeMsgpack")
	_, decodes := p.MethodByName("DecodeMsgpack")
	switch {
	case t.Kind() == reflect.Interface:
		return Any, true
	case encodes, decodes,
		p.Implements(reflect.TypeFor[interface{ MarshalMsgpack() ([]byte, error) }]()),
		p.Implements(reflect.TypeFor[interface{ UnmarshalMsgpack([]byte) error }]()):
		return Any, true
	case p.Implements(reflect.TypeFor[encoding.BinaryMarshaler]()), p.Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]()):
		return Bytes, true
	case p.Implements(reflect.TypeFor[encoding.TextMarshaler]()), p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return String, true // which a decoder takes as the text, too
	}
	return "", false
}
