package schema

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/fairlead-dev/fairlead/wire"
)

// ToJSON converts a value of a type to JSON on one line. What is not as the type says, also a key that a struct does not have, is shown by its own type; bytes are
// base64 then, and an ext is {"ext": type, "data": base64}. The keys of maps are in the order they came. A float has a point or an exponent, unless it is no number. What a
// terminal would act on is escaped. It fails with wire.Malformed for what is no value.
func (d *Description) ToJSON(t int, value wire.Raw) ([]byte, error) {
	v, err := wire.Tree(value)
	if err != nil {
		return nil, err
	}
	return Escape(d.append(nil, v, t)), nil
}

// Escape returns JSON with what a terminal would act on within its strings escaped in JSON's own syntax.
func Escape(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out = append(out, string(r)...)
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out
}

// append appends a value of a type. The type's kind decides only where the value fits it.
func (d *Description) append(out []byte, v any, t int) []byte {
	typ := d.at(t)
	if typ.Kind == Optional && v != nil {
		typ = d.at(typ.Elem)
	}
	switch v := v.(type) {
	case nil:
		return append(out, cmp.Or(empty[typ.Kind], "null")...)
	case bool:
		return strconv.AppendBool(out, v)
	case int64:
		switch typ.Kind {
		case UnixTime:
			return appendUnix(out, v)
		case Descriptor:
			return fmt.Appendf(out, `"descriptor %d"`, v)
		}
		return strconv.AppendInt(out, v, 10)
	case uint64:
		return strconv.AppendUint(out, v, 10)
	case float32:
		return appendFloat(out, float64(v), 32)
	case float64:
		return appendFloat(out, v, 64)
	case string:
		if typ.Kind == Bytes {
			return appendString(out, base64.StdEncoding.EncodeToString([]byte(v)))
		}
		return appendString(out, v)
	case []byte:
		if typ.Kind == String {
			return appendString(out, string(v))
		}
		return appendString(out, base64.StdEncoding.EncodeToString(v))
	case time.Time:
		return appendString(out, v.UTC().Format(time.RFC3339Nano))
	case []any:
		return d.appendList(out, v, typ)
	case wire.Map:
		return d.appendMap(out, v, typ)
	case wire.Ext:
		return fmt.Appendf(out, `{"ext":%d,"data":%q}`, v.Type, base64.StdEncoding.EncodeToString(v.Data))
	}
	return append(out, "null"...) // a Tree has no other
}

// empty is what nil is where it is not null.
var empty = map[Kind]string{Bytes: `""`, List: "[]", Dict: "{}"}

func (d *Description) appendList(out []byte, list []any, typ Type) []byte {
	elem := 0
	if typ.Kind == List {
		elem = typ.Elem
	}
	out = append(out, '[')
	for i, v := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = d.append(out, v, elem)
	}
	return append(out, ']')
}

func (d *Description) appendMap(out []byte, m wire.Map, typ Type) []byte {
	fields := map[string]Field{}
	if typ.Kind == Struct {
		for _, f := range typ.Fields {
			fields[f.Key] = f
		}
	}
	out = append(out, '{')
	for i, p := range m {
		if i > 0 {
			out = append(out, ',')
		}
		keys, elem := 0, 0
		if typ.Kind == Dict {
			keys, elem = typ.Key, typ.Elem
		}
		name, isText := p.Key.(string)
		if f, known := fields[name]; known && isText {
			name, elem = f.Name, f.Type
		} else if !isText || typ.Kind == Dict {
			name = d.keyText(p.Key, keys)
		}
		out = append(appendString(out, name), ':')
		out = d.append(out, p.Value, elem)
	}
	return append(out, '}')
}

// keyText is a key as the text of a name: that of a string, and the JSON of all else.
func (d *Description) keyText(key any, t int) string {
	text := string(d.append(nil, key, t))
	var s string
	if strings.HasPrefix(text, `"`) && json.Unmarshal([]byte(text), &s) == nil {
		return s
	}
	return text
}

func appendString(out []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // of no string it fails
	return append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

func appendUnix(out []byte, ns int64) []byte {
	if ns == 0 {
		return append(out, "null"...)
	}
	return appendString(out, wire.Time(ns).Time().Format(time.RFC3339Nano))
}

func appendFloat(out []byte, f float64, bits int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return appendString(out, strconv.FormatFloat(f, 'g', -1, bits))
	}
	text := strconv.FormatFloat(f, 'g', -1, bits)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return append(out, text...)
}
