package schema_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// foreign is a description that no Go type has.
var foreign = schema.Description{Methods: []schema.Method{{Name: "0", Kind: "call", Request: 1}}, Types: []schema.Type{
	{Kind: schema.Any}, {Kind: schema.Struct, Fields: []schema.Field{{Key: "", Name: "x", Type: 2}, {Key: "\xff", Name: "", Type: 3}, {Key: "f", Name: "f", Type: 4}}},
	{Kind: schema.Dict, Key: 3, Elem: 1}, {Kind: schema.UnixTime}, {Kind: schema.Dict, Key: 5, Elem: 6}, {Kind: schema.Float, Bits: 32}, {Kind: schema.Dict, Key: 7, Elem: 1},
	{Kind: schema.Bytes, Len: 3},
}}

// FuzzJSON: what a description takes of JSON can be walked, also within a request, shown as JSON, and that again becomes the same. If the description is that
// of a Go type, that decodes it.
func FuzzJSON(f *testing.F) {
	ours, err := wire.Marshal(*derived(f))
	if err != nil {
		f.Fatal(err)
	}
	theirs, err := wire.Marshal(foreign)
	if err != nil {
		f.Fatal(err)
	}
	for i, text := range []string{
		whole, `{"a":1,"b":true}`, `{"p":"AA==","http_server":"x"}`, `{"a":"x"}`, `{}`,
		`{}`, `{}`, `{}`, `[1,2]`, `{"two":1,"2":2}`, `{"next":{"next":null}}`, `[[[],[]],[]]`, `null`, `{"1":{"-128":{}}}`,
	} {
		f.Add([]byte(nil), uint8(i), []byte(text))
	}
	f.Add(theirs, uint8(0), []byte(`{"x":{"null":{}},"":"2026-01-01T00:00:00.5Z","f":{"1.5":{"AA==":{}},"NaN":{}}}`))
	f.Add([]byte(nil), uint8(24), []byte(`{"":"x"}`))
	f.Add([]byte(nil), uint8(15), []byte(`[-0,-0.0,1e400,"\ud800",{"a":{"a":[]}},0.1e-7,123456789012345678901234567890]`))
	f.Fuzz(func(t *testing.T, description []byte, method uint8, text []byte) {
		own := len(description) == 0
		if own {
			description = ours
		}
		d, err := schema.Parse(description)
		if err != nil || len(d.Methods) == 0 {
			return
		}
		m := d.Methods[int(method)%len(d.Methods)]
		b, err := d.FromJSON(m.Request, text)
		if err != nil {
			return
		}
		request, err := wire.Marshal(wire.Request{Method: "m", Value: b})
		if err != nil || wire.Walk(b) != nil || wire.Walk(request) != nil {
			t.Fatalf("%s: %x cannot be walked", text, b)
		}
		shown, err := d.ToJSON(m.Request, b)
		if err != nil || !json.Valid(shown) {
			t.Fatalf("%s: shown as %q, %v", text, shown, err)
		}
		again, err := d.FromJSON(m.Request, shown)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%s: shown as %s, which becomes %x and not %x: %v", text, shown, again, b, err)
		}
		i, err := strconv.Atoi(m.Name)
		if err != nil || !own || d.Types[m.Request].Kind == schema.Any {
			return
		}
		if err := wire.Unmarshal(b, reflect.New(types[i]).Interface()); err != nil && !picky(err) {
			t.Fatalf("%s: %v does not decode %x: %v", text, types[i], b, err)
		}
	})
}

// picky reports whether an error is that of a type which decodes itself, and does not take every text or all bytes.
func picky(err error) bool {
	return strings.Contains(err.Error(), "math/big: ") || strings.Contains(err.Error(), "unexpected slice size")
}

// FuzzReply: whatever a service says of itself and then sends is shown as one line of JSON, and nothing in it steers a terminal.
func FuzzReply(f *testing.F) {
	d, i := describe[every](f)
	description, err := wire.Marshal(*d)
	if err != nil {
		f.Fatal(err)
	}
	b, err := d.FromJSON(i, []byte(`{"any":[1,"\u001b"],"unix":"2026-01-01T00:00:00Z"}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(description, uint16(i), []byte(b))
	f.Add([]byte(nil), uint16(0), []byte("\xc7\x0c\xff\x00\x00\x00\x01\x7f\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, description []byte, typ uint16, value []byte) {
		d, err := schema.Parse(description)
		if err != nil {
			d = &schema.Description{}
		}
		i := int(typ) % max(1, len(d.Types))
		if shown := d.Expr(i); wire.Printable(shown, len(shown)) != shown {
			t.Fatalf("type %q", shown)
		}
		shown, err := d.ToJSON(i, value)
		if err != nil {
			return
		}
		if !json.Valid(shown) || wire.Printable(string(shown), len(shown)) != string(shown) {
			t.Fatalf("%x: %q", value, shown)
		}
		if err := wire.Walk(d.Zero(i)); err != nil {
			t.Fatalf("the zero of %s: %v", d.Expr(i), err)
		}
	})
}
