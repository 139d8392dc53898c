package services_test

import (
	"context"
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

// handOver hands a connection over to a host, and returns the client's end of it and what the client is answered.
func handOver(t *testing.T, h *services.Host, o wire.HandOver) <-chan wire.Frame {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if ends[i], err = socket.FromFile(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Cleanup(func() { ends[0].Close() })
	o.Session, o.Endpoint = session.NewID(), endpoint
	h.HandOver(o, ends[1])
	answered := make(chan wire.Frame, 1)
	go func() {
		f, _, _ := socket.ReadFrame(ends[0])
		answered <- f
	}()
	return answered
}

// host returns a host of the echo endpoint, whose author checks sessions as given.
func host(t *testing.T, accept func(context.Context, services.Opening) error) *services.Host {
	t.Helper()
	s := echoServer(endpoint)
	s.Accept = accept
	h, err := services.NewHost(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Release)
	return h
}

// The guard is identify of the host: what a broker's message says of the client is for display, and decides nothing.
func TestWhoAClientIsComesFromItsSocketAndFromNoMessage(t *testing.T) {
	opened := make(chan services.Opening, 1)
	h := host(t, func(_ context.Context, o services.Opening) error {
		opened <- o
		return nil
	})
	answered := handOver(t, h, wire.HandOver{Client: wire.Process{PID: 1, UID: 4242, GID: 4343, Program: "another"}})
	want := wire.Process{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Program: "another"}
	if o := wait(t, "the opening", opened); o.Client != want {
		t.Errorf("the client is %+v, want %+v", o.Client, want)
	}
	if f := wait(t, "the answer", answered); f.Kind != wire.KindAccepted {
		t.Errorf("it is answered with a %v", f.Kind)
	}
	for _, info := range h.Take() {
		if info.Client != want {
			t.Errorf("the broker is told of the client %+v, want %+v", info.Client, want)
		}
	}
}

// The guard is the time of Host.ask.
func TestACheckThatTakesTooLongRefusesItsClient(t *testing.T) {
	h := host(t, func(ctx context.Context, _ services.Opening) error {
		<-ctx.Done()
		return ctx.Err()
	})
	h.SetAcceptWait(100 * time.Millisecond)
	f := wait(t, "the answer", handOver(t, h, wire.HandOver{}))
	refusal, err := wire.DecodeError(f.Body)
	if f.Kind != wire.KindRefused || err != nil || refusal.Code != wire.DeadlineExceeded {
		t.Errorf("it is answered with a %v: %v, %v, want %s", f.Kind, refusal, err, wire.DeadlineExceeded)
	}
}
