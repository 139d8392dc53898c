package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// maxJSON bounds the text of one value, in bytes: a value of wire.MaxLarge whose every character is escaped has less.
	maxJSON = 32 << 20
	// maxNesting is how deep a value may be nested: a request is one level around it.
	maxNesting = wire.MaxDepth - 1
)

// FromJSON converts JSON to a value of a type, and checks it on the way: what is absent from a struct is zero, null is an empty list, map or bytes, and what the type does
// not have is refused. It fails with wire.Malformed, and says where, what is wanted and what was given. What it returns passes wire.Walk, also as a part of a request.
func (d *Description) FromJSON(t int, text []byte) (wire.Raw, error) {
	r := d.NewReader(t, strings.NewReader(string(text)))
	value, err := r.Next()
	if err == io.EOF {
		return nil, wire.Errorf(wire.Malformed, "no JSON where %s is wanted", d.want(t))
	}
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.Token(); err != io.EOF {
		return nil, wire.Errorf(wire.Malformed, "more than one value: there is more behind byte %d", r.dec.InputOffset())
	}
	return value, nil
}

// Zero returns the zero of a type: of a struct a map without keys, of Any and Optional nil.
func (d *Description) Zero(t int) wire.Raw {
	var zero any
	switch d.at(t).Kind {
	case Bool:
		zero = false
	case Int, Uint, UnixTime:
		zero = 0
	case Float:
		zero, _ = floating("0", d.at(t).bits())
	case String:
		zero = ""
	case Bytes:
		zero = []byte{}
	case Time:
		zero = time.Time{}
	case List:
		zero = []any{}
	case Dict, Struct:
		zero = wire.Map{}
	}
	b, _ := wire.Marshal(zero) // of these there is none that fails
	return b
}

// A Reader converts JSON values that stand one behind the other.
type Reader struct {
	d   *Description
	t   int
	dec *json.Decoder
	in  *io.LimitedReader
}

// NewReader returns a Reader of values of a type.
func (d *Description) NewReader(t int, in io.Reader) *Reader {
	limited := &io.LimitedReader{R: in}
	dec := json.NewDecoder(limited)
	dec.UseNumber()
	return &Reader{d: d, t: t, dec: dec, in: limited}
}

// Next converts the next value, as FromJSON does. It returns io.EOF when there is none. After another error it is of no more use.
func (r *Reader) Next() (wire.Raw, error) {
	r.in.N = maxJSON
	token, err := r.dec.Token()
	if err == io.EOF && r.in.N > 0 {
		return nil, io.EOF
	}
	var v any
	if err == nil {
		v, err = r.value(token, r.t, 0)
	}
	var b []byte
	if err == nil {
		b, err = wire.Marshal(v)
	}
	if err == nil {
		return b, nil
	}
	return nil, r.failure(err)
}

// failure says why a value could not be read.
func (r *Reader) failure(err error) error {
	if wrong, ok := errors.AsType[*mismatch](err); ok {
		return wrong.failure()
	}
	if r.in.N <= 0 {
		return wire.Errorf(wire.Malformed, "JSON of more than %d MiB", maxJSON>>20)
	}
	text := "it ends early"
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		text = syntax.Error()
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err // of who reads
	}
	return wire.Errorf(wire.Malformed, "no JSON: %s, at byte %d", wire.Printable(text, wire.MaxText), r.dec.InputOffset())
}

// A mismatch is JSON that a type does not take.
type mismatch struct {
	path string // from the value as a whole to what is wrong
	text string
}

func (m *mismatch) Error() string { return m.text }

func (m *mismatch) failure() error {
	where := strings.TrimPrefix(m.path, ".")
	if where != "" {
		where += ": "
	}
	return wire.Errorf(wire.Malformed, "%s%s", wire.Printable(where, wire.MaxText), m.text)
}

// within says in which part of a value something is wrong.
func within(err error, format string, args ...any) error {
	if wrong, ok := errors.AsType[*mismatch](err); ok {
		wrong.path = fmt.Sprintf(format, args...) + wrong.path
	}
	return err
}

// mistaken says what a type wants and what it got.
func (r *Reader) mistaken(token json.Token, t int) error {
	return &mismatch{text: "want " + r.d.want(t) + ", got " + got(token)}
}

// got names what JSON a token begins.
func got(token json.Token) string {
	const most = 40
	switch v := token.(type) {
	case json.Delim:
		if v == '[' {
			return "an array"
		}
		return "an object"
	case string:
		return strconv.Quote(wire.Printable(v, most))
	case json.Number:
		return wire.Printable(v.String(), most)
	}
	if token == nil {
		return "null"
	}
	return fmt.Sprint(token)
}

// value converts the value that token begins.
func (r *Reader) value(token json.Token, t, depth int) (any, error) {
	typ := r.d.at(t)
	switch typ.Kind {
	case Optional:
		if token == nil {
			return nil, nil
		}
		return r.value(token, typ.Elem, depth)
	case Struct, Dict, List:
		return r.composite(token, t, depth)
	case Bool, Int, Uint, Float, String, Bytes, Time, UnixTime, Descriptor:
		v, ok := scalar(token, typ)
		if !ok {
			return nil, r.mistaken(token, t)
		}
		return v, nil
	}
	switch v := token.(type) {
	case json.Delim:
		return r.composite(token, t, depth)
	case json.Number:
		return number(v.String())
	}
	return token, nil
}

// composite converts an array or an object; for Any by its own type.
func (r *Reader) composite(token json.Token, t, depth int) (any, error) {
	if depth == maxNesting {
		return nil, &mismatch{text: fmt.Sprintf("nested deeper than %d", maxNesting)}
	}
	typ := r.d.at(t)
	list, object := typ.Kind == List, typ.Kind == Dict || typ.Kind == Struct
	either := !list && !object
	switch {
	case token == nil && list:
		return []any{}, nil
	case token == nil && typ.Kind == Dict:
		return wire.Map{}, nil
	case token == json.Delim('[') && (list || either):
		return r.list(t, depth+1)
	case token == json.Delim('{') && (object || either):
		return r.object(t, depth+1)
	}
	return nil, r.mistaken(token, t)
}

func (r *Reader) list(t, depth int) (any, error) {
	typ, list := r.d.at(t), []any{}
	for r.dec.More() {
		token, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		if typ.Len > 0 && len(list) == typ.Len {
			return nil, &mismatch{text: "want " + r.d.want(t) + ", got more"}
		}
		v, err := r.value(token, typ.Elem, depth)
		if err != nil {
			return nil, within(err, "[%d]", len(list))
		}
		list = append(list, v)
	}
	_, err := r.dec.Token()
	return list, err
}

// object converts the members of an object, to its end.
func (r *Reader) object(t, depth int) (any, error) {
	m, seen := wire.Map{}, map[any]bool{}
	for r.dec.More() {
		token, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // it is: the decoder takes no other
		key, elem, err := r.member(t, name)
		if err != nil {
			return nil, err
		}
		once := key
		if b, ok := key.([]byte); ok { // which is no key of Go's
			once = string(b)
		}
		if seen[once] {
			return nil, within(&mismatch{text: "is given twice"}, ".%s", name)
		}
		seen[once] = true
		if token, err = r.dec.Token(); err != nil {
			return nil, err
		}
		v, err := r.value(token, elem, depth)
		if err != nil {
			return nil, within(err, ".%s", name)
		}
		m = append(m, wire.Pair{Key: key, Value: v})
	}
	_, err := r.dec.Token()
	return m, err
}

// member returns the key that a name in an object of a type stands for, and the type of its value.
func (r *Reader) member(t int, name string) (key any, elem int, err error) {
	typ := r.d.at(t)
	switch typ.Kind {
	case Struct:
		return r.field(typ, name)
	case Dict:
		keys := r.d.at(typ.Key)
		if keys.Kind == Any {
			return name, typ.Elem, nil
		}
		key, ok := scalar(spelled(name, keys), keys)
		if !ok {
			return nil, 0, within(&mismatch{text: "as a key: want " + r.d.want(typ.Key)}, ".%s", name)
		}
		return key, typ.Elem, nil
	}
	return name, 0, nil
}

// spelled returns the token that a name stands for as a key.
func spelled(name string, keys Type) json.Token {
	switch keys.Kind {
	case Int, Uint, Float:
		return json.Number(name)
	case Bool:
		if name == "true" || name == "false" {
			return name == "true"
		}
	case UnixTime:
		if name == "null" {
			return nil
		}
	}
	return name
}

func (r *Reader) field(typ Type, name string) (key any, elem int, err error) {
	var names []string
	for _, f := range typ.Fields {
		if f.Name == name {
			return f.Key, f.Type, nil
		}
		names = append(names, f.Name)
	}
	text := "there is no such field"
	if meant := nearest.Question(name, names); meant != "" {
		text += meant
	} else if len(names) > 0 {
		text += ": there is " + strings.Join(names[:min(len(names), 16)], ", ")
	}
	return nil, 0, within(&mismatch{text: wire.Printable(text, wire.MaxText)}, ".%s", name)
}
