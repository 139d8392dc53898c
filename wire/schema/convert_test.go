package schema_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// whole is a value of every kind but descriptors, as JSON.
const whole = `{"any":{"b":[1,18446744073709551615,1.5,null,true],"a":"x"},"bool":true,"int8":-128,"uint16":65535,"int":-9223372036854775808,"float32":0.1,` +
	`"float64":-1e+300,` + `"text":"héllo <\"\\\u0007>","code":"c","bytes":"AP8=","four":"AQI=","two":[1],"time":"2026-02-03T04:05:06.000000007Z","unix":"1969-12-31T23:59:59.999999999Z",` +
	`"took":1000000000,"list":["b","a"],"map":{"z":1,"y":-1},"numbers":{"255":"a","0":""},"maybe":7,"struct":{"a":1,"b":true},` +
	`"node":{"next":{"next":null,"children":[],"by_name":{}},"children":[{"next":null}],"by_name":{"k":{}}},"address":"CgAAAQ==","big":"123","raw":[1],"flags":{"true":{},"false":{}}}`

func TestJSONBecomesWhatTheHandlerDecodesAndBack(t *testing.T) {
	d, i := describe[every](t)
	b, err := d.FromJSON(i, []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	back, err := d.ToJSON(i, b)
	if err != nil || string(back) != whole {
		t.Errorf("%s\nwant\n%s\n%v", back, whole, err)
	}
	var v every
	if err := wire.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if v.Int8 != -128 || v.Uint16 != 65535 || v.Text != "héllo <\"\\\a>" || v.Four != [4]byte{1, 2} || v.Two != [2]int32{1} || v.Float32 != 0.1 ||
		!v.Time.Equal(time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC)) || v.Unix != -1 || v.Map["y"] != -1 || v.Numbers[255] != "a" || *v.Maybe != 7 || v.Node.Next == nil ||
		len(v.Node.Children) != 1 || v.Address.String() != "10.0.0.1" || v.Big.String() != "123" || len(v.Flags) != 2 || !bytes.Equal(v.Bytes, []byte{0, 255}) {
		t.Errorf("%+v", v)
	}
	whatIsSent, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := d.ToJSON(i, whatIsSent)
	if err != nil || !json.Valid(shown) || !strings.Contains(string(shown), `"address":"CgAAAQ=="`) || !strings.Contains(string(shown), `"big":"123"`) {
		t.Errorf("%s, %v", shown, err)
	}
}

func TestWhatATypeDoesNotTakeIsToldWithItsPlace(t *testing.T) {
	d, i := describe[every](t)
	for text, want := range map[string]string{
		`{"lst":[]}`:                           "lst: there is no such field: is it list?",
		`{"struct":{"nothing alike":1}}`:       "struct.nothing alike: there is no such field: there is a, b",
		`{"bool":1}`:                           "bool: want true or false, got 1",
		`{"bool":null}`:                        "bool: want true or false, got null",
		`{"int8":128}`:                         "int8: want int8: a whole number from -128 to 127, got 128",
		`{"int8":1.0}`:                         "int8: want int8: a whole number from -128 to 127, got 1.0",
		`{"uint16":-1}`:                        "uint16: want uint16: a whole number from 0 to 65535, got -1",
		`{"int":9223372036854775808}`:          "from -9223372036854775808 to 9223372036854775807, got 9223372036854775808",
		`{"float32":1e39}`:                     "float32: want float32: a number, got 1e39",
		`{"text":5}`:                           "text: want a string, got 5",
		`{"text":["a"]}`:                       "text: want a string, got an array",
		`{"bytes":"a"}`:                        `bytes: want bytes: a string in base64, got "a"`,
		`{"four":"AQIDBAU="}`:                  "four: want bytes: a string in base64 of at most 4 bytes",
		`{"two":[1,2,3]}`:                      "two: want an array of at most 2 values, got more",
		`{"time":"yesterday"}`:                 `time: want a time as 2006-01-02T15:04:05Z, got "yesterday"`,
		`{"time":"0000-01-01T00:00:00+01:00"}`: "time: want a time",
		`{"unix":"1066-10-14T09:00:00Z"}`:      "unix: want a time as 2006-01-02T15:04:05Z, from 1678 to 2262",
		`{"unix":5}`:                           "unix: want a time",
		`{"list":["a",{"b":1}]}`:               "list[1]: want a string, got an object",
		`{"map":{"a":"b"}}`:                    `map.a: want int64`,
		`{"map":[]}`:                           "map: want an object, got an array",
		`{"numbers":{"256":""}}`:               "numbers.256: as a key: want uint8: a whole number from 0 to 255",
		`{"numbers":{"1":"","01":""}}`:         "numbers.01: is given twice",
		`{"flags":{"maybe":{}}}`:               "flags.maybe: as a key: want true or false",
		`{"bool":true,"bool":true}`:            "bool: is given twice",
		`{"maybe":"x"}`:                        "maybe: want int32: a whole number from -2147483648 to 2147483647, got \"x\"",
		`{"node":{"children":[{},{"x":1}]}}`:   "node.children[1].x: there is no such field",
		`{"file":0}`:                           "file: want nothing: a descriptor cannot be sent from JSON, got 0",
		`{"any":1e999}`:                        "any: want a number of 64 bits, got 1e999",
		`{"text` + "\x1b" + `":1}`:             "no JSON: invalid character '\\x1b' in string literal, at byte",
		`{"\u001b[2J":1}`:                      `\x1b[2J: there is no such field`,
		`[1]`:                                  "want an object, got an array",
		`"x"`:                                  `want an object, got "x"`,
		`null`:                                 "want an object, got null",
		``:                                     "no JSON where an object is wanted",
		`{`:                                    "no JSON: it ends early",
		`{"bool":`:                             "no JSON: it ends early",
		`{} {}`:                                "more than one value",
		`{}]`:                                  "more than one value",
		`{"bool" true}`:                        "no JSON: invalid character 't' after object key",
		`nul`:                                  "no JSON: it ends early",
		`{"any":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`: "nested deeper than 31",
	} {
		b, err := d.FromJSON(i, []byte(text))
		if !errors.Is(err, wire.Malformed) || !strings.Contains(err.Error(), want) || strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("%s: %x, %v, want %q", text, b, err, want)
		}
	}
}

func TestWhatMayBeLeftOutIsZero(t *testing.T) {
	d, i := describe[every](t)
	for _, text := range []string{`{}`, `{"list":null,"map":null,"bytes":null,"unix":null,"maybe":null,"node":null,"file":null,"any":null}`} {
		b, err := d.FromJSON(i, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var v every
		if err := wire.Unmarshal(b, &v); err != nil || len(v.List)+len(v.Map)+len(v.Bytes) != 0 || v.Unix != 0 || v.Maybe != nil || v.Node != nil || v.File != nil || v.Any != nil {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
}

func TestEachTypeHasAZeroThatItsHandlerTakes(t *testing.T) {
	d := derived(t)
	for i, typ := range types {
		zero := d.Zero(d.Methods[i].Request)
		v := reflect.New(typ)
		if d.Types[d.Methods[i].Request].Kind == schema.Any {
			if !bytes.Equal(zero, []byte{0xc0}) {
				t.Errorf("%v: %x", typ, zero)
			}
			continue
		}
		if err := wire.Unmarshal(zero, v.Interface()); err != nil {
			t.Errorf("%v: %x: %v", typ, zero, err)
		}
	}
	for kind, want := range map[schema.Kind]string{
		schema.Bool: "false", schema.Int: "0", schema.Uint: "0", schema.Float: "0.0", schema.String: `""`, schema.Bytes: `""`, schema.Time: `"0001-01-01T00:00:00Z"`, schema.UnixTime: "null",
		schema.List: "[]", schema.Dict: "{}", schema.Struct: "{}", schema.Optional: "null", schema.Any: "null", schema.Descriptor: "null", "of a later version": "null",
	} {
		d := schema.Description{Types: []schema.Type{{Kind: schema.Any}, {Kind: kind}}}
		if got, err := d.ToJSON(1, d.Zero(1)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", kind, got, err, want)
		}
	}
}

func TestWithoutADescriptionJSONIsWhatItIs(t *testing.T) {
	d := &schema.Description{}
	for text, want := range map[string]any{
		`null`: nil, `true`: true, `1`: int64(1), `18446744073709551615`: uint64(1<<64 - 1), `1.0`: 1.0, `1e2`: 100.0, `"AP8="`: "AP8=", `[]`: []any{},
		`{"b":1,"a":[{}]}`: wire.Map{{Key: "b", Value: int64(1)}, {Key: "a", Value: []any{wire.Map{}}}},
	} {
		b, err := d.FromJSON(0, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := wire.Tree(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, %v", text, got, err)
		}
	}
}

func TestAReplyIsShownEvenIfItIsNotAsDescribed(t *testing.T) {
	d, i := describe[every](t)
	show := func(v any) string {
		b, err := wire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text, err := d.ToJSON(i, b)
		if err != nil || !json.Valid(text) {
			t.Fatalf("%q, %v", text, err)
		}
		return string(text)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		v    any
		want string
	}{
		{5, "5"}, {nil, "null"}, {"x\x1b\u009b2J\u202e\U000e0001", `"x\u001b\u009b2J\u202e\udb40\udc01"`}, {[]any{at}, `["2026-01-02T03:04:05Z"]`},
		{map[string]any{"i": "text", "??": 1}, `{"??":1,"int8":"text"}`},
		{map[string]any{"y": "str"}, `{"bytes":"c3Ry"}`},
		{map[string]any{"s": []byte("bin")}, `{"text":"bin"}`},
		{map[string]any{"l": nil, "m": nil}, `{"list":[],"map":{}}`},
		{map[string]any{"b": nil, "r": nil}, `{"bool":null,"struct":null}`},
		{map[string]any{"h": 2}, `{"file":"descriptor 2"}`},
		{map[string]any{"f": float32(3), "g": 1e21}, `{"float32":3.0,"float64":1e+21}`},
		{map[int]any{1: map[bool]int{true: 1}}, `{"1":{"true":1}}`},
		{wire.Map{{Key: []any{int64(1), "a"}, Value: nil}, {Key: at, Value: 1}}, `{"[1,\"a\"]":null,"2026-01-02T03:04:05Z":1}`},
	} {
		if got := show(test.v); got != test.want {
			t.Errorf("%v: %s, want %s", test.v, got, test.want)
		}
	}
	for b, want := range map[string]string{"\xd4\x05\xff": `{"ext":5,"data":"/w=="}`, "": "null", "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01": `"NaN"`} {
		if got, err := d.ToJSON(i, wire.Raw(b)); err != nil || string(got) != want {
			t.Errorf("%x: %s, %v, want %s", b, got, err, want)
		}
	}
	if _, err := d.ToJSON(i, wire.Raw("\xc1")); !errors.Is(err, wire.Malformed) {
		t.Errorf("%v", err)
	}
}

func TestValuesOneBehindTheOtherAreRead(t *testing.T) {
	d, i := describe[inner](t)
	r := d.NewReader(i, io.MultiReader(strings.NewReader(`{"a":1} {"a":`), strings.NewReader("2}\n\n{}")))
	for _, want := range []string{`{"a":1}`, `{"a":2}`, `{}`} {
		b, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.ToJSON(i, b); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("%v, want the end", err)
	}
	r = d.NewReader(i, io.MultiReader(strings.NewReader(`{"a":`), failing{}))
	if _, err := r.Next(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v, want the reader's own", err)
	}
	endless := d.NewReader(0, io.MultiReader(strings.NewReader(`"`), repeat{}))
	if _, err := endless.Next(); !errors.Is(err, wire.Malformed) || !strings.Contains(err.Error(), "more than 32 MiB") {
		t.Errorf("%v, want a limit", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

type repeat struct{}

func (repeat) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func TestAHostileDescriptionIsRefusedAtABoundedCost(t *testing.T) {
	anything := schema.Type{Kind: schema.Any}
	of := func(types ...schema.Type) schema.Description {
		return schema.Description{Types: append([]schema.Type{anything}, types...)}
	}
	fields := make([]schema.Field, schema.MaxFields+1)
	for i := range fields {
		fields[i] = schema.Field{Key: fmt.Sprint(i), Name: fmt.Sprint(i)}
	}
	for name, d := range map[string]schema.Description{
		"a type that is not there":          of(schema.Type{Kind: schema.List, Elem: 2}),
		"a type below 0":                    of(schema.Type{Kind: schema.Dict, Key: -1}),
		"an optional of itself":             of(schema.Type{Kind: schema.Optional, Elem: 1}),
		"optionals in a circle":             of(schema.Type{Kind: schema.Optional, Elem: 2}, schema.Type{Kind: schema.Optional, Elem: 1}),
		"a field's type that is not there":  of(schema.Type{Kind: schema.Struct, Fields: []schema.Field{{Key: "a", Name: "a", Type: 9}}}),
		"two fields of a name":              of(schema.Type{Kind: schema.Struct, Fields: []schema.Field{{Key: "a", Name: "x"}, {Key: "b", Name: "x"}}}),
		"two fields of a key":               of(schema.Type{Kind: schema.Struct, Fields: []schema.Field{{Key: "a", Name: "x"}, {Key: "a", Name: "y"}}}),
		"too many fields":                   of(schema.Type{Kind: schema.Struct, Fields: fields}),
		"a long name":                       of(schema.Type{Kind: schema.Struct, Name: strings.Repeat("x", schema.MaxName+1)}),
		"a number of 7 bits":                of(schema.Type{Kind: schema.Int, Bits: 7}),
		"a length below 0":                  of(schema.Type{Kind: schema.List, Len: -1}),
		"a first type that is not any":      {Types: []schema.Type{{Kind: schema.Bool}}},
		"too many types":                    of(make([]schema.Type, schema.MaxTypes)...),
		"too many methods":                  {Methods: make([]schema.Method, schema.MaxMethods+1)},
		"a method without a name":           {Methods: []schema.Method{{}}},
		"a method of a type that is absent": {Methods: []schema.Method{{Name: "a", Request: 1}}},
		"a long text":                       {Methods: []schema.Method{{Name: "a", Doc: strings.Repeat("x", schema.MaxDoc+1)}}},
	} {
		b, err := wire.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := schema.Parse(b); !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v, want %s", name, err, wire.Malformed)
		}
	}
	bomb := append([]byte{0x81, 0xa1, 'm', 0xdd, 0, 0x0f, 0xff, 0xf0}, bytes.Repeat([]byte{0xc0}, 0x0ffff0)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := schema.Parse(bomb)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, wire.Malformed) || n > 256<<20 {
		t.Errorf("%v, and that took %d bytes", err, n)
	}
	if _, err := schema.Parse(append(bomb, make([]byte, 1<<20)...)); !errors.Is(err, wire.Malformed) {
		t.Errorf("%v", err)
	}
}

func TestWhatADescriptionNamesIsEscaped(t *testing.T) {
	const evil = "\x1b[2J\n"
	d := &schema.Description{Types: []schema.Type{{Kind: schema.Any}, {Kind: schema.Struct, Name: evil, Fields: []schema.Field{{Key: "a", Name: evil}}}, {Kind: evil}}}
	_, err := d.FromJSON(1, []byte(`{"x":1}`))
	for _, said := range []string{d.Expr(1), d.Expr(2), err.Error()} {
		if strings.ContainsAny(said, "\x1b\n") {
			t.Errorf("%q", said)
		}
	}
}
