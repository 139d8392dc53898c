package session_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// rawChild is the value of childVariable for a child that echoes on the sockets from descriptor 3 on.
const rawChild = "raw"

// A note is a small typed value.
type note struct {
	Text string `msgpack:"t"`
	N    int    `msgpack:"n"`
}

// noted replies with the note that it is sent.
func noted(_ context.Context, m *session.Message) (any, error) {
	var n note
	err := m.Decode(&n)
	return n, err
}

const noteSize = 64

// serveRaw echoes noteSize bytes at a time on every socket that this process has inherited, until they are all closed.
func serveRaw() {
	var all sync.WaitGroup
	for fd := uintptr(3); ; fd++ {
		f := os.NewFile(fd, "raw")
		conn, err := socket.FromFile(f)
		f.Close()
		if err != nil {
			break
		}
		all.Go(func() {
			b := make([]byte, noteSize)
			for {
				if _, err := io.ReadFull(conn, b); err != nil {
					return
				}
				if _, err := conn.Write(b); err != nil {
					return
				}
			}
		})
	}
	all.Wait()
}

// withRaw returns so many sockets of which a child process echoes each.
func withRaw(b *testing.B, n int) []*net.UnixConn {
	conns, files := make([]*net.UnixConn, n), make([]*os.File, n)
	for i := range conns {
		ours, theirs := sockets(b)
		f, err := theirs.File()
		if err != nil {
			b.Fatal(err)
		}
		theirs.Close()
		conns[i], files[i] = ours, f
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+rawChild)
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	b.Cleanup(func() {
		for _, c := range conns {
			c.Close()
		}
		cmd.Wait()
	})
	return conns
}

// A traffic is so many calls, by so many callers at once, each with a rest before it.
type traffic struct {
	callers, calls int
	rest           time.Duration
}

// measure returns how long half of the calls took at most, and how many there were in a second.
func (l traffic) measure(b *testing.B, call func(caller int) error) (p50 time.Duration, rate float64) {
	var all sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(l.calls))
	took := make([][]time.Duration, l.callers)
	began := time.Now()
	for i := range l.callers {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				time.Sleep(l.rest)
				began := time.Now()
				if err := call(i); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	all.Wait()
	d := time.Since(began)
	sorted := slices.Concat(took...)
	slices.Sort(sorted)
	return sorted[len(sorted)/2], float64(len(sorted)) / d.Seconds()
}

// What a call costs beside the same work on raw sockets, in the same run, the server in a process of its own: medians of five rounds. Run it with
// -benchtime 1x.
func BenchmarkBesideRaw(b *testing.B) {
	for _, test := range []struct {
		name string
		traffic
	}{
		{"one caller", traffic{1, 5000, 0}},
		{"one caller that rests 10 ms", traffic{1, 100, 10 * time.Millisecond}},
		{"64 callers", traffic{64, 30_000, 0}},
	} {
		b.Run(channel()+"/"+test.name, func(b *testing.B) {
			raw := withRaw(b, test.callers)
			c, _ := withChild(b, nil)
			buffers := make([][noteSize]byte, test.callers)
			rawCall := func(i int) error {
				if _, err := raw[i].Write(buffers[i][:]); err != nil {
					return err
				}
				_, err := io.ReadFull(raw[i], buffers[i][:])
				return err
			}
			text := strings.Repeat("x", noteSize)
			call := func(i int) error {
				var reply note
				return c.Call(context.Background(), "note", note{text, i}, &reply)
			}
			var figures [6][]float64 // p50, rate, and their ratios
			for b.Loop() {
				for range 5 {
					p, r := test.measure(b, rawCall)
					q, s := test.measure(b, call)
					for i, f := range []float64{float64(p), r, float64(q), s, float64(q) / float64(p), s / r} {
						figures[i] = append(figures[i], f)
					}
				}
			}
			for i, unit := range []string{"raw-p50-ns", "raw-calls/s", "p50-ns", "calls/s", "p50/raw", "rate/raw"} {
				slices.Sort(figures[i])
				b.ReportMetric(figures[i][len(figures[i])/2], unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
