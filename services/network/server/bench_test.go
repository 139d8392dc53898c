package server_test

import (
	"fmt"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// Each operation allocates a lease on an open session and releases it, both recorded, while others hold leases.
func BenchmarkAllocateRelease(b *testing.B) {
	for _, held := range []int{0, 60_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			s := start(b, server.Config{Networks: networks(b, "default=10.0.0.0/8"), StateDir: folder(b)})
			var c *session.Session
			for n := range held {
				if n%250 == 0 {
					c = open(b, s.path)
				}
				if _, err := network.Allocate(b.Context(), c, network.Request{}); err != nil {
					b.Fatal(err)
				}
			}
			c = open(b, s.path)
			b.ReportAllocs()
			for b.Loop() {
				l, err := network.Allocate(b.Context(), c, network.Request{})
				if err == nil {
					err = l.Release(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
