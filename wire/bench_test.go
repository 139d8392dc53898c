package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

// A parcel is a small typed message, as a request or its reply may be.
type parcel struct {
	Name  string   `msgpack:"n"`
	Count int      `msgpack:"c"`
	Tags  []string `msgpack:"t"`
}

// parcels are some 60 bytes, and almost all that a frame takes.
var parcels = []struct {
	size string
	parcel
}{
	{"small", parcel{"com.example.echo", 4711, []string{"one", "two", "three", "four", "five"}}},
	{"60 KB", parcel{strings.Repeat("x", 50_000), 4711, strings.Split(strings.Repeat("tag ", 2500), " ")}},
}

// eachParcel runs a benchmark with each value and its encoded form.
func eachParcel(b *testing.B, run func(b *testing.B, p parcel, encoded []byte)) {
	for _, p := range parcels {
		b.Run(p.size, func(b *testing.B) {
			encoded, err := wire.Marshal(p.parcel)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(encoded)))
			b.ReportAllocs()
			run(b, p.parcel, encoded)
		})
	}
}

func BenchmarkWalk(b *testing.B) {
	eachParcel(b, func(b *testing.B, _ parcel, encoded []byte) {
		for b.Loop() {
			if err := wire.Walk(encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	eachParcel(b, func(b *testing.B, p parcel, _ []byte) {
		for b.Loop() {
			if _, err := wire.Marshal(&p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A decode begins with a walk.
func BenchmarkDecode(b *testing.B) {
	eachParcel(b, func(b *testing.B, want parcel, encoded []byte) {
		for b.Loop() {
			var p parcel
			if err := wire.Unmarshal(encoded, &p); err != nil || p.Count != want.Count {
				b.Fatal(p.Count, err)
			}
		}
	})
}

// One operation appends a header to a buffer and reads it again.
func BenchmarkHeader(b *testing.B) {
	h, buf := wire.Header{Kind: wire.KindRequest, ID: 7, Length: 95}, make([]byte, 0, wire.HeaderSize)
	b.ReportAllocs()
	for b.Loop() {
		buf = h.Append(buf[:0])
		if got, err := wire.ParseHeader(buf); err != nil || got != h {
			b.Fatal(got, err)
		}
	}
}

// One operation appends a frame to a buffer and reads it again.
func BenchmarkFrame(b *testing.B) {
	eachParcel(b, func(b *testing.B, p parcel, encoded []byte) {
		f, err := wire.NewFrame(wire.KindOneWay, 0, p)
		if err != nil {
			b.Fatal(err)
		}
		var buf []byte
		for b.Loop() {
			buf = f.Append(buf[:0])
			r := bytes.NewBuffer(buf)
			got, err := wire.ReadFrame(func(n int) ([]byte, error) { return r.Next(n), nil })
			if err != nil || got.Length != uint32(len(encoded)) {
				b.Fatal(got.Header, err)
			}
		}
	})
}

func TestAHeaderAllocatesNothing(t *testing.T) {
	h, buf := wire.Header{Kind: wire.KindRequest, ID: 7, Length: 95}, make([]byte, 0, wire.HeaderSize)
	if n := testing.AllocsPerRun(100, func() {
		buf = h.Append(buf[:0])
		if got, err := wire.ParseHeader(buf); err != nil || got != h {
			t.Fatal(got, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
