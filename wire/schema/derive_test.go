package schema_test

import (
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// Types of which each has something of its own.
type (
	inner struct {
		A int8 `msgpack:"a"`
		B bool
	}
	outer struct {
		inner
		*Pointed
		HTTPServer string
		MACGiven   bool   `msgpack:"m"`
		Named      string `msgpack:"n" json:"a_name,omitempty"`
		Hidden     string `msgpack:"h" json:"-"`
		Absent     string `msgpack:"-"`
		unexported int
	}
	Pointed struct {
		P []byte `msgpack:"p"`
	}
	shadowing struct {
		A     string `msgpack:"a"`
		inner        // shares a key: it travels as a field, but nobody outside can set it
	}
	Shared struct {
		A string `msgpack:"a"`
		B string `msgpack:"b"`
	}
	sharing struct {
		A      int `msgpack:"a"`
		Shared     // a field of its own
	}
	inlined struct {
		A      int                 `msgpack:"a"`
		Shared `msgpack:",inline"` // without the key that is there
	}
	apart struct {
		Shared `msgpack:"s,noinline"`
	}
	later struct {
		Shared
		A int `msgpack:"a"` // in place of the embedded one
	}
	row struct {
		_msgpack struct{} `msgpack:",as_array"`
		A, B     int
	}
	clash struct {
		One int `msgpack:"1" json:"two"`
		Two int `msgpack:"2"`
	}
	node struct {
		Next     *node           `msgpack:"n"`
		Children []node          `msgpack:"c"`
		ByName   map[string]node `msgpack:"m"`
	}
	tower  []tower
	cycle  *cycle
	itself map[int8]itself
	code   string
	own    struct{ wire.Raw }
	every  struct {
		Any     any               `msgpack:"a"`
		Bool    bool              `msgpack:"b"`
		Int8    int8              `msgpack:"i"`
		Uint16  uint16            `msgpack:"u"`
		Int     int               `msgpack:"n"`
		Float32 float32           `msgpack:"f"`
		Float64 float64           `msgpack:"g"`
		Text    string            `msgpack:"s"`
		Code    code              `msgpack:"o"`
		Bytes   []byte            `msgpack:"y"`
		Four    [4]byte           `msgpack:"4"`
		Two     [2]int32          `msgpack:"2"`
		Time    time.Time         `msgpack:"t"`
		Unix    wire.Time         `msgpack:"x"`
		Took    time.Duration     `msgpack:"d"`
		List    []string          `msgpack:"l"`
		Map     map[string]int    `msgpack:"m"`
		Numbers map[uint8]string  `msgpack:"k"`
		Maybe   *int32            `msgpack:"p"`
		Struct  inner             `msgpack:"r"`
		Node    *node             `msgpack:"e"`
		File    *os.File          `msgpack:"h"`
		Address netip.Addr        `msgpack:"w"`
		Big     *big.Int          `msgpack:"z"`
		Raw     wire.Raw          `msgpack:"q"`
		Flags   map[bool]struct{} `msgpack:"v"`
	}
)

var _ = row{}._msgpack // which msgpack alone looks at

var types = []reflect.Type{
	reflect.TypeFor[every](), reflect.TypeFor[inner](), reflect.TypeFor[outer](), reflect.TypeFor[shadowing](), reflect.TypeFor[sharing](), reflect.TypeFor[inlined](),
	reflect.TypeFor[apart](), reflect.TypeFor[Shared](), reflect.TypeFor[row](), reflect.TypeFor[clash](), reflect.TypeFor[node](), reflect.TypeFor[tower](),
	reflect.TypeFor[cycle](), reflect.TypeFor[itself](), reflect.TypeFor[own](), reflect.TypeFor[any](), reflect.TypeFor[error](), reflect.TypeFor[func()](),
	reflect.TypeFor[chan int](), reflect.TypeFor[uintptr](), reflect.TypeFor[complex64](), reflect.TypeFor[**int](), reflect.TypeFor[[]*os.File](), reflect.TypeFor[*time.Time](),
	reflect.TypeFor[map[netip.Addr]*big.Int](), reflect.TypeFor[struct{}](), reflect.TypeFor[[0]int](),
}

// derived describes all of types, each as the request of a method with its number as name.
func derived(t testing.TB) *schema.Description {
	var ts schema.Types
	d := schema.Description{}
	for i, typ := range types {
		d.Methods = append(d.Methods, schema.Method{Name: fmt.Sprint(i), Kind: "call", Request: ts.Of(typ)})
	}
	d.Types = ts.All()
	return travelled(t, d)
}

// travelled returns a description as who has asked for it gets it.
func travelled(t testing.TB, d schema.Description) *schema.Description {
	t.Helper()
	b, err := wire.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := schema.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// describe describes one type, and returns its index.
func describe[T any](t testing.TB) (*schema.Description, int) {
	var ts schema.Types
	i := ts.Of(reflect.TypeFor[T]())
	return travelled(t, schema.Description{Types: ts.All()}), i
}

func TestTypesAreDerivedFromGo(t *testing.T) {
	d, i := describe[every](t)
	var got []string
	for _, f := range d.Types[i].Fields {
		got = append(got, f.Key+" "+f.Name+" "+d.Expr(f.Type))
	}
	want := strings.Split(`a any any
b bool bool
i int8 int8
u uint16 uint16
n int int64
f float32 float32
g float64 float64
s text string
o code string
y bytes bytes
4 four bytes
2 two [int32]
t time time
x unix unix_time
d took int64
l list [string]
m map {string: int64}
k numbers {uint8: string}
p maybe int32?
r struct inner
e node node?
h file descriptor
w address bytes
z big string?
q raw any
v flags {bool: {}}`, "\n")
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

func TestATypeThatHasNoDescriptionIsAny(t *testing.T) {
	d := derived(t)
	for i, want := range map[int]string{
		8: "any", 9: "clash", 10: "node", 11: "[[[[[[…]]]]]]", 12: "any", 13: "{int8: {int8: {int8: {int8: {int8: {…: …}}}}}}", 14: "any", 15: "any", 16: "any", 17: "any",
		18: "any", 19: "any", 20: "any", 21: "int64?", 22: "[descriptor]", 23: "time?", 24: "{bytes: string?}", 25: "{}", 26: "any",
	} {
		if got := d.Expr(d.Methods[i].Request); got != want {
			t.Errorf("%v: %s, want %s", types[i], got, want)
		}
	}
}

// The keys are those that msgpack writes: its rules for embedded structs are not ours.
func TestAStructHasTheKeysThatTravel(t *testing.T) {
	for _, v := range []any{
		every{}, inner{}, outer{Pointed: &Pointed{}, unexported: 1}, sharing{}, inlined{}, apart{}, clash{}, node{}, Shared{}, wire.Open{}, wire.Request{}, wire.Error{}, schema.Type{},
		wire.Inspection{},
	} {
		var ts schema.Types
		s := ts.All()[0]
		if i := ts.Of(reflect.TypeOf(v)); i > 0 {
			s = ts.All()[i]
		}
		b, err := wire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := wire.Tree(b)
		if err != nil {
			t.Fatal(err)
		}
		left := map[string]bool{}
		for _, f := range s.Fields {
			left[f.Key] = true
		}
		for _, p := range tree.(wire.Map) {
			if !left[p.Key.(string)] {
				t.Errorf("%T: key %v travels and is not described", v, p.Key)
			}
			delete(left, p.Key.(string))
		}
		for key := range left { // what is left out where it is empty
			if f, ok := fieldOf(reflect.TypeOf(v), key); !ok || !strings.Contains(f.Tag.Get("msgpack"), "omitempty") {
				t.Errorf("%T: key %s is described and does not travel", v, key)
			}
		}
	}
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("msgpack"), ","); name == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func TestFieldsHaveTheirJSONNames(t *testing.T) {
	for _, test := range []struct {
		of   func() (*schema.Description, int)
		want string
	}{
		{func() (*schema.Description, int) { return describe[outer](t) }, "a=a B=b p=p HTTPServer=http_server m=mac_given n=a_name h=hidden"},
		{func() (*schema.Description, int) { return describe[clash](t) }, "1=two 2=2"},
		{func() (*schema.Description, int) { return describe[sharing](t) }, "a=a Shared=shared"},
		{func() (*schema.Description, int) { return describe[inlined](t) }, "a=a b=b"},
		{func() (*schema.Description, int) { return describe[later](t) }, "b=b a=a"},
		{func() (*schema.Description, int) { return describe[shadowing](t) }, "a=a"},
	} {
		d, i := test.of()
		var got []string
		for _, f := range d.Types[i].Fields {
			got = append(got, f.Key+"="+f.Name)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %s, want %s", d.Expr(i), got, test.want)
		}
	}
}

func TestWhatIsBeyondABoundIsAnyAndTheRestIsThere(t *testing.T) {
	var ts schema.Types
	most, field := 0, func(i int) reflect.StructField {
		return reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: reflect.TypeFor[string](), Tag: reflect.StructTag(fmt.Sprintf(`msgpack:"%0100d"`, i))}
	}
	for i := range 2 * schema.MaxTypes { // arrays of arrays, each a type
		most = max(most, ts.Of(reflect.ArrayOf(i+1, reflect.TypeFor[int8]())))
	}
	if got := len(ts.All()); got != schema.MaxTypes || most != schema.MaxTypes-1 {
		t.Errorf("%d types, the last is %d", got, most)
	}
	var wide schema.Types
	var fields []reflect.StructField
	for i := range schema.MaxFields {
		fields = append(fields, field(i))
	}
	full, over := wide.Of(reflect.StructOf(fields)), wide.Of(reflect.StructOf(append(fields, field(schema.MaxFields))))
	d := travelled(t, schema.Description{Types: wide.All()})
	if len(d.Types[full].Fields) != schema.MaxFields || d.Types[over].Kind != schema.Any {
		t.Errorf("%d fields, and one more is %s", len(d.Types[full].Fields), d.Types[over].Kind)
	}
	long := reflect.StructOf([]reflect.StructField{{Name: "F", Type: reflect.TypeFor[string](), Tag: reflect.StructTag(`msgpack:"` + strings.Repeat("k", schema.MaxName+1) + `"`)}})
	var named schema.Types
	if i := named.Of(long); named.All()[i].Kind != schema.Any {
		t.Error("a key that is too long is described")
	}
}

func TestTheLargestDescriptionIsWithinItsBound(t *testing.T) {
	d := schema.Description{Endpoint: strings.Repeat("e", wire.MaxEndpoint), Types: []schema.Type{{Kind: schema.Any}}}
	for i := range schema.MaxMethods {
		d.Methods = append(d.Methods, schema.Method{
			Name: fmt.Sprintf("%0*d", wire.MaxMethod, i), Kind: "streaming call", Doc: strings.Repeat("d", schema.MaxDoc), Request: 511, Reply: 511, In: 511, Out: 511,
		})
	}
	for range schema.MaxTypes - 1 {
		d.Types = append(d.Types, schema.Type{Kind: schema.Struct, Name: strings.Repeat("n", schema.MaxName)})
	}
	for i := range schema.MaxFields {
		typ := &d.Types[1+i%(schema.MaxTypes-1)]
		name := fmt.Sprintf("%0*d", schema.MaxName, i)
		typ.Fields = append(typ.Fields, schema.Field{Key: name, Name: name, Type: 511})
	}
	b, err := wire.Marshal(d)
	if err != nil || len(b) > schema.MaxSize {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	travelled(t, d)
}
