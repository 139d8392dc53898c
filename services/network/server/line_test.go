package server_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network/server"
)

func TestALineIsWrittenAsItIsRead(t *testing.T) {
	full := reflect.New(reflect.TypeFor[server.Entry]()).Elem()
	entries := []server.Entry{{Kind: "k"}}
	for i := range full.NumField() { // each field alone, and at last all of them
		alone := reflect.New(full.Type()).Elem()
		alone.FieldByName("Kind").SetString("k")
		set(t, alone.Field(i))
		full.Field(i).Set(alone.Field(i))
		entries = append(entries, alone.Interface().(server.Entry))
	}
	entries = append(entries, full.Interface().(server.Entry))
	for _, text := range []string{"", "~", "a\"b", `a\b`, "a\nb", "a<b>&c", "\u2028", "ä", "\xff", "\x7f"} {
		entries = append(entries, server.Entry{Kind: "k" + text, Token: text})
	}
	for _, e := range entries {
		want, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, _ := bytes.Cut(bytes.TrimSuffix(server.Encode(e), []byte("\n")), []byte(" ")); !bytes.Equal(got, want) {
			t.Errorf("written is %s, want %s", got, want)
		}
	}
}

// set gives v, and all that is in it, some value.
func set(t *testing.T, v reflect.Value) {
	t.Helper()
	if _, ok := v.Interface().(netip.Prefix); ok {
		v.Set(reflect.ValueOf(netip.MustParsePrefix("fd00::2/64")))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("some")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			set(t, v.Index(i))
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			set(t, field)
		}
	default:
		t.Fatalf("no value of kind %v", v.Kind())
	}
}
