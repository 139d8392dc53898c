package session_test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A call on the lane, and in the process that is without, on a stream.
func BenchmarkCall(b *testing.B) {
	for name, size := range map[string]int{"empty": 0, "60 KB": 60_000, "large, 1 MB": 1_000_000} {
		b.Run(channel()+"/"+name, func(b *testing.B) {
			c, _ := both(b, usual)
			text, took := strings.Repeat("x", size), newLatencies()
			b.ReportAllocs()
			for b.Loop() {
				began, reply := time.Now(), ""
				if err := c.Call(context.Background(), "echo", text, &reply); err != nil || len(reply) != size {
					b.Fatalf("%d bytes, %v", len(reply), err)
				}
				took.since(began)
			}
			b.ReportMetric(float64(took.at(0.99).Nanoseconds()), "p99-ns/op")
		})
	}
}

// A call with a small typed request and reply.
func BenchmarkTypedCall(b *testing.B) {
	c, _ := both(b, usual)
	b.ReportAllocs()
	for b.Loop() {
		var reply note
		if err := c.Call(context.Background(), "note", note{"text", 1}, &reply); err != nil || reply.N != 1 {
			b.Fatalf("%+v, %v", reply, err)
		}
	}
}

// A value that goes there and back on a streaming call.
func BenchmarkItem(b *testing.B) {
	c, _ := both(b, usual)
	st := begin(b, c, "repeat", nil)
	took := newLatencies()
	b.ReportAllocs()
	for b.Loop() {
		began, v := time.Now(), ""
		if err := st.Send("x"); err != nil {
			b.Fatal(err)
		}
		if err := st.Receive(&v); err != nil {
			b.Fatal(err)
		}
		took.since(began)
	}
	b.ReportMetric(float64(took.at(0.99).Nanoseconds()), "p99-ns/op")
}

// What a raw stream carries at most, in writes of 32 KiB.
func BenchmarkStream(b *testing.B) {
	c, _ := both(b, usual)
	st := open(b, c, "sink")
	data, took := make([]byte, 32<<10), newLatencies()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		if _, err := st.Write(data); err != nil {
			b.Fatal(err)
		}
		took.since(began)
	}
	b.ReportMetric(float64(took.at(0.99).Nanoseconds()), "p99-ns/op")
}
