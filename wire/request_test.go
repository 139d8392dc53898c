package wire_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

// requests are of every shape that Append knows.
func requests(t testing.TB) (list []wire.Request) {
	for _, method := range []string{"", "m", strings.Repeat("x", 31), strings.Repeat("x", 32), strings.Repeat("x", wire.MaxMethod), strings.Repeat("x", 256), strings.Repeat("x", 1<<16)} {
		for _, n := range []int64{0, 1, 127, 128, 255, 256, 65_535, 65_536, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, -1, math.MinInt64} {
			for _, v := range []any{nil, "", "text", []int{1, 2}, map[string]any{"v": nil}} {
				r := wire.Request{Method: method, Within: n}
				if v == nil {
					r.Length = n
				} else if value, err := wire.Marshal(v); err != nil {
					t.Fatal(err)
				} else {
					r.Value = value
				}
				list = append(list, r)
			}
		}
	}
	return list
}

func TestARequestIsEncodedAndReadAsByTheLibrary(t *testing.T) {
	for _, r := range requests(t) {
		want, err := wire.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got := r.Append([]byte("before"))
		compact := r.Within >= math.MinInt32 && r.Within < 0 // shorter there, and sent by nobody
		if !compact && string(got) != "before"+string(want) {
			t.Errorf("%.40v is encoded as %.60x, want %.60x", r, got[len("before"):], want)
		}
		sameRequest(t, got[len("before"):])
		sameRequest(t, want)
	}
	for _, b := range []string{"", "\x80", "\x81", "\x81\xa1m", "\x81\xa1m\xa1", "\x82\xa1m\xa1x\xa1v", "\x82\xa1m\xa1x\xa1v\xc0", "\x82\xa1m\xa1x\xa1v\x93\x01", "\x81\xa1m\xa1xx",
		"\x82\xa1m\xa1x\xa1m\xa1y", "\x82\xa1w\x01\xa1m\xa1y", "\x82\xa1m\xa1x\xa1z\xa1y", "\x82\xa1m\xa1x\xa1n\xcb\x40\x00\x00\x00\x00\x00\x00\x00", "\x83\xa1m\xa1x\xa1v\x01\xa1n\x02",
		"\x82\xa1m\xa1x\xa1w\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "\x81\xa1m\xc4\x01x", "\x81\xa1m\xc0", "\xde\x00\x01\xa1m\xa1x"} {
		sameRequest(t, []byte(b))
	}
}

// sameRequest checks that a request, or what is none, reads as it does by the library.
func sameRequest(t *testing.T, b []byte) {
	t.Helper()
	want := wire.Request{}
	wrong := wire.Unmarshal(b, &want)
	for _, known := range []string{"", "m", want.Method} {
		r, err := wire.ParseRequest(b, known)
		if (err == nil) != (wrong == nil) || err != nil && !errors.Is(err, wire.Malformed) {
			t.Fatalf("%.60x: %v, want %v", b, err, wrong)
		}
		if err == nil && (r.Method != want.Method || r.Within != want.Within || r.Length != want.Length || !bytes.Equal(r.Value, want.Value) || (r.Value == nil) != (want.Value == nil)) {
			t.Fatalf("%.60x: %+v, want %+v", b, r, want)
		}
	}
}

func TestARequestAndAHeaderCostNoMemory(t *testing.T) {
	r := wire.Request{Method: "method", Within: 1000, Value: wire.Raw("\xa4text")}
	b := make([]byte, 0, 256)
	h := wire.Header{Kind: wire.KindRequest, ID: 1, Length: 20}.Append(nil)
	if n := testing.AllocsPerRun(100, func() {
		got, err := wire.ParseRequest(r.Append(b), r.Method)
		parsed, headerErr := wire.ParseHeader(h)
		if err != nil || headerErr != nil || !bytes.Equal(got.Value, r.Value) || parsed.ID != 1 {
			t.Error(got, err, headerErr)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseRequest(f *testing.F) {
	for i, r := range requests(f) {
		if i%7 == 0 && len(r.Method) < 256 {
			f.Add(r.Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= wire.MaxBody {
			sameRequest(t, b)
		}
	})
}
