package watch_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/watch"
)

// crowd returns a Set of so many live watches: two thirds sockets, one third pidfds of this process.
func crowd(b *testing.B, size int) *watch.Set {
	b.Helper()
	s := newSet(b)
	for i := range size {
		if i%3 != 0 {
			own, _ := pair(b)
			add(b, s, own, watch.Socket, func() { b.Error("a live socket is gone") })
			continue
		}
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			b.Fatal(err)
		}
		pidfd := os.NewFile(uintptr(fd), "pidfd")
		b.Cleanup(func() { pidfd.Close() })
		add(b, s, pidfd, watch.Process, func() { b.Error("a live process is gone") })
	}
	return s
}

func BenchmarkAsk(b *testing.B) {
	for _, size := range []int{1, 9000} {
		b.Run(fmt.Sprintf("live=%d", size), func(b *testing.B) {
			s := crowd(b, size)
			b.ReportAllocs()
			for b.Loop() {
				ask(b, s)
			}
		})
	}
}

// Each operation adds one watch to 9,000 live ones and removes it.
func BenchmarkAddRemove(b *testing.B) {
	s := crowd(b, 9000)
	own, _ := pair(b)
	conn := raw(b, own)
	b.ReportAllocs()
	for b.Loop() {
		w, err := s.Add(conn, watch.Socket, func() {})
		if err != nil || !s.Remove(w) {
			b.Fatal(err)
		}
	}
}
