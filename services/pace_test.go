package services_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// The guard is the Limiter in Host: clients that are turned away at the limit of open files are as many as they like.
func TestHandOversThatFailAreLoggedAtALimitedRate(t *testing.T) {
	const times = 300
	path, logged := brokertest.Socket(t), &log{}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	server := echoServer(endpoint)
	server.Socket, server.Logger = path, slog.New(slog.NewTextHandler(logged, nil))
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context()) }()
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if f, _, err := socket.ReadFrame(conn); err != nil || f.Kind != wire.KindRegister {
		t.Fatalf("%v, %v, want a registration", f.Kind, err)
	}
	conn.SetDeadline(time.Time{})
	accepted, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{})
	if err != nil {
		t.Fatal(err)
	}
	mux := services.NewMux()
	services.Handle(mux, wire.MethodSessions, func(context.Context, wire.Sessions) (any, error) { return nil, nil })
	control := session.NewControl(conn, session.Config{Endpoint: "control", Handler: mux}, accepted)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	began := time.Now()
	for range times {
		o := wire.HandOver{Session: session.NewID(), Endpoint: endpoint, Socket: null} // no socket
		if err := control.Send(within(t, 10*time.Second), wire.MethodHandOver, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := control.Call(within(t, 10*time.Second), wire.MethodStop, nil, nil); err != nil { // it is taken up behind them
		t.Fatal(err)
	}
	most := 10 * (int(time.Since(began)/time.Second) + 2)
	said := strings.Count(strings.Join(logged.all(), "\n"), "cannot take a connection over")
	if said == 0 || said > most {
		t.Errorf("%d hand-overs that fail are logged in %d lines, want 1 to %d", times, said, most)
	}
	control.Close()
	if err := wait(t, "the end", served); err != nil {
		t.Errorf("serve: %v", err)
	}
}
