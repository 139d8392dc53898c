// Package schema says what the methods of an endpoint are and what values they take: it derives that from Go types, and by it converts values from JSON and
// to it. It is pure.
package schema

import (
	"fmt"
	"math"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// Reserved begins the names of methods that are the library's own: no author's method can have one.
	Reserved = "fairlead."
	// Describe is the method that answers a call without a value with a Description.
	Describe = Reserved + "describe"
)

// Bounds of a Description. What is beyond them is not described: a type is then Any, and a text is cut.
const (
	MaxSize    = 1 << 20 // bytes of a Description as it is encoded
	MaxMethods = 512
	MaxTypes   = 512
	MaxFields  = 2048 // of all types together
	MaxName    = 128  // bytes of the name of a type, and of a field's key and name
	MaxDoc     = 512  // bytes of what is said of a method
)

// A Description says which methods an endpoint has. The zero one knows no types: then every value is Any.
type Description struct {
	Endpoint string   `msgpack:"e" json:"endpoint"`
	Methods  []Method `msgpack:"m" json:"methods"` // by name
	Types    []Type   `msgpack:"t" json:"types"`   // that of index 0 is Any
}

// A Method is one method. Its types are indices in Types; 0 also stands for a value that there is none of.
type Method struct {
	Name    string `msgpack:"n" json:"name"`
	Kind    string `msgpack:"k" json:"kind"` // call, one-way, stream or streaming call
	Doc     string `msgpack:"d,omitempty" json:"doc,omitempty"`
	Request int    `msgpack:"q,omitempty" json:"request,omitempty"` // of all but streams
	Reply   int    `msgpack:"r,omitempty" json:"reply,omitempty"`   // of calls
	In      int    `msgpack:"i,omitempty" json:"in,omitempty"`      // what the client of a streaming call sends
	Out     int    `msgpack:"o,omitempty" json:"out,omitempty"`     // what the service of a streaming call sends
}

// A Kind is what a type is. One that is not known is taken for Any.
type Kind string

// The kinds, and what they are in JSON.
const (
	Any        Kind = "any"        // whatever the JSON is: an object is a map with strings as keys, a number without point and exponent is an int
	Bool       Kind = "bool"       //
	Int        Kind = "int"        // a number without point and exponent
	Uint       Kind = "uint"       // likewise, and not below 0
	Float      Kind = "float"      // a number, or one of "NaN", "+Inf" and "-Inf"
	String     Kind = "string"     //
	Bytes      Kind = "bytes"      // a string in base64
	Time       Kind = "time"       // msgpack's timestamp: a string as RFC 3339 has it
	UnixTime   Kind = "unix_time"  // an int of Unix ns, 0 for none: a string as RFC 3339 has it, or null
	List       Kind = "list"       // an array
	Dict       Kind = "map"        // an object; keys that are not strings are written into them
	Optional   Kind = "optional"   // what Elem is, or null
	Struct     Kind = "struct"     // an object with the names of fields
	Descriptor Kind = "descriptor" // null: it cannot be sent from JSON
)

// A Type is a type of values.
type Type struct {
	Kind   Kind    `msgpack:"k" json:"kind"`
	Name   string  `msgpack:"n,omitempty" json:"name,omitempty"`   // of a Struct, as it is in Go, without its package
	Bits   int     `msgpack:"b,omitempty" json:"bits,omitempty"`   // of an Int, Uint or Float: 8, 16, 32 or 64; 0: 64
	Len    int     `msgpack:"l,omitempty" json:"len,omitempty"`    // how many bytes or values Bytes or a List has at most; 0: any number
	Key    int     `msgpack:"y,omitempty" json:"key,omitempty"`    // of a Dict's keys
	Elem   int     `msgpack:"e,omitempty" json:"elem,omitempty"`   // of the values of a List, Dict or Optional
	Fields []Field `msgpack:"f,omitempty" json:"fields,omitempty"` // of a Struct
}

// A Field is one of a struct.
type Field struct {
	Key  string `msgpack:"k" json:"key"`  // on the wire
	Name string `msgpack:"j" json:"name"` // in JSON: that of the Go field's json tag, or the Go field's own in snake case
	Type int    `msgpack:"t,omitempty" json:"type"`
}

// Parse decodes a Description that a peer has sent. It fails with wire.Malformed.
func Parse(b []byte) (*Description, error) {
	if len(b) > MaxSize {
		return nil, wire.Errorf(wire.Malformed, "a description of %d bytes, limit %d", len(b), MaxSize)
	}
	d := &Description{}
	if err := wire.Unmarshal(b, d); err != nil {
		return nil, err
	}
	return d, nil
}

// Validate checks a Description that was received.
func (d *Description) Validate() error {
	if len(d.Methods) > MaxMethods || len(d.Types) > MaxTypes || len(d.Endpoint) > wire.MaxEndpoint {
		return wire.Errorf(wire.Malformed, "a description with %d methods and %d types, limits %d and %d", len(d.Methods), len(d.Types), MaxMethods, MaxTypes)
	}
	for _, m := range d.Methods {
		if m.Name == "" || len(m.Name) > wire.MaxMethod || len(m.Doc) > MaxDoc || len(m.Kind) > MaxName || !d.has(m.Request, m.Reply, m.In, m.Out) {
			return wire.Errorf(wire.Malformed, "a description whose method %q has a name, text or type that is none", wire.Printable(m.Name, 64))
		}
	}
	fields := 0
	for i, t := range d.Types {
		fields += len(t.Fields)
		if fields > MaxFields || !d.valid(t) || i == 0 && t.Kind != Any {
			return wire.Errorf(wire.Malformed, "a description whose type %d is none", i)
		}
	}
	return nil
}

// has reports whether all indices are those of types.
func (d *Description) has(indices ...int) bool {
	for _, i := range indices {
		if i < 0 || i > 0 && i >= len(d.Types) {
			return false
		}
	}
	return true
}

func (d *Description) valid(t Type) bool {
	if !d.has(t.Key, t.Elem) || len(t.Name) > MaxName || len(t.Kind) > MaxName || t.Len < 0 {
		return false
	}
	switch t.Bits {
	case 0, 8, 16, 32, 64:
	default:
		return false
	}
	if t.Kind == Optional && d.at(t.Elem).Kind == Optional { // it could be its own
		return false
	}
	keys, names := map[string]bool{}, map[string]bool{}
	for _, f := range t.Fields {
		if len(f.Key) > MaxName || len(f.Name) > MaxName || keys[f.Key] || names[f.Name] || !d.has(f.Type) {
			return false
		}
		keys[f.Key], names[f.Name] = true, true
	}
	return true
}

// at returns the type of an index. What is not known is Any.
func (d *Description) at(i int) Type {
	if i < len(d.Types) {
		switch t := d.Types[i]; t.Kind {
		case Bool, Int, Uint, Float, String, Bytes, Time, UnixTime, List, Dict, Optional, Struct, Descriptor:
			return t
		}
	}
	return Type{Kind: Any}
}

// IsEmpty reports whether a type is a struct without fields: values of it say nothing.
func (d *Description) IsEmpty(i int) bool { return d.at(i).Kind == Struct && len(d.at(i).Fields) == 0 }

// maxExpr is how deep a type's expression is written out.
const maxExpr = 6

// Expr returns a type in the notation of docs/protocol.md, as {string: [int32]}; a ? is behind what may be null. It is escaped as wire.Printable does.
func (d *Description) Expr(i int) string { return d.expr(i, maxExpr) }

func (d *Description) expr(i, depth int) string {
	if depth == 0 {
		return "…"
	}
	t := d.at(i)
	switch t.Kind {
	case Int, Uint, Float:
		return fmt.Sprintf("%s%d", t.Kind, t.bits())
	case List:
		return "[" + d.expr(t.Elem, depth-1) + "]"
	case Dict:
		return "{" + d.expr(t.Key, depth-1) + ": " + d.expr(t.Elem, depth-1) + "}"
	case Optional:
		return d.expr(t.Elem, depth-1) + "?"
	case Struct:
		return d.structName(i)
	}
	return string(t.Kind)
}

// structName names a struct; one whose name another has, too, or that has none, by its index.
func (d *Description) structName(i int) string {
	t := d.at(i)
	if len(t.Fields) == 0 && t.Name == "" {
		return "{}"
	}
	for other := range d.Types {
		if other != i && d.Types[other].Kind == Struct && d.Types[other].Name == t.Name || t.Name == "" {
			return wire.Printable(fmt.Sprintf("%s#%d", t.Name, i), 2*MaxName)
		}
	}
	return wire.Printable(t.Name, MaxName)
}

// bits returns the width of a number.
func (t Type) bits() int {
	if t.Bits == 0 {
		return 64
	}
	return t.Bits
}

// want says what JSON a type takes.
func (d *Description) want(i int) string {
	t := d.at(i)
	switch t.Kind {
	case Bool:
		return "true or false"
	case Int:
		return fmt.Sprintf("%s: a whole number from %d to %d", d.Expr(i), int64(math.MinInt64)>>(64-t.bits()), int64(math.MaxInt64)>>(64-t.bits()))
	case Uint:
		return fmt.Sprintf("%s: a whole number from 0 to %d", d.Expr(i), uint64(math.MaxUint64)>>(64-t.bits()))
	case Float:
		return d.Expr(i) + ": a number"
	case String:
		return "a string"
	case Bytes:
		return "bytes: a string in base64" + t.most("bytes")
	case Time:
		return "a time as 2006-01-02T15:04:05Z"
	case UnixTime:
		return "a time as 2006-01-02T15:04:05Z, from 1678 to 2262, or null"
	case List:
		return "an array" + t.most("values")
	case Dict, Struct:
		return "an object"
	case Optional:
		return d.want(t.Elem) + ", or null"
	case Descriptor:
		return "nothing: a descriptor cannot be sent from JSON"
	}
	return "a value"
}

// most says how long a value may be, if that has a bound.
func (t Type) most(what string) string {
	if t.Len == 0 {
		return ""
	}
	return fmt.Sprintf(" of at most %d %s", t.Len, what)
}

// Find returns the methods of a name: usually one, and two where a call and a stream share it.
func (d *Description) Find(name string) (found []Method) {
	for _, m := range d.Methods {
		if m.Name == name {
			found = append(found, m)
		}
	}
	return found
}
