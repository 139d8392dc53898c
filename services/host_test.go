package services_test

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// connected returns both ends of a socket.
func connected(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		ends[i], err = socket.FromFile(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

func TestAHandOverIsAnsweredInOneWriteAndOutlivesTheDeadlinesOfWhoHandsItOver(t *testing.T) {
	host, err := services.NewHost(echoServer(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Release()
	ours, theirs := connected(t)
	defer ours.Close()
	theirs.SetDeadline(time.Unix(1, 0))
	id := session.NewID()
	routed := wire.Routed{Session: id, Service: endpoint, Instance: 3, Process: wire.Process{PID: 42}}
	features := []string{wire.FeatureLane, wire.FeatureRelay}
	host.HandOver(wire.HandOver{Session: id, Endpoint: endpoint, Features: features, Limits: wire.DefaultLimits, Routed: &routed}, theirs)
	ours.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 4096)
	n, err := ours.Read(b) // of one write
	if err != nil {
		t.Fatal(err)
	}
	var accepted wire.Accepted
	for i, body := range []any{&wire.Routed{}, &accepted} {
		h, err := wire.ParseHeader(b[:n])
		if err != nil || h.Kind != []wire.Kind{wire.KindRouted, wire.KindAccepted}[i] {
			t.Fatalf("frame %d is a %v, %v", i, h.Kind, err)
		}
		size := wire.HeaderSize + int(h.Length)
		if err := wire.Unmarshal(b[wire.HeaderSize:size], body); err != nil {
			t.Fatal(err)
		}
		if r, ok := body.(*wire.Routed); ok && *r != routed {
			t.Errorf("%+v, want %+v", r, routed)
		}
		b, n = b[size:], n-size
	}
	if n != 0 || len(accepted.Features) != 1 || accepted.Features[0] != wire.FeatureLane {
		t.Errorf("%d bytes more, and the features %q", n, accepted.Features)
	}
	ours.SetDeadline(time.Time{})
	s, err := session.New(ours, session.Config{ID: id, Endpoint: endpoint, Opener: true, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Call(within(t, 10*time.Second), "echo", nil, nil); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
