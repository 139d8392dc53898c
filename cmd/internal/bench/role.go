package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// roleName is the argv[0] by which this program knows that it is to play a role.
const roleName = "fairlead-bench"

// The roles, with their arguments.
const (
	roleRaw       = "raw"        // SOCKET: the raw peer
	roleService   = "service"    // BROKER ENDPOINT: the service
	roleHoldRaw   = "hold-raw"   // SOCKET NAME: a client that holds a name of the raw peer
	roleHoldLease = "hold-lease" // BROKER NETWORK: a client that holds a lease
)

// What a role says on stdout, first on its line.
const (
	ready  = "ready"
	held   = "held" // and how long that took, in nanoseconds, and what
	failed = "failed"
)

func init() {
	if os.Args[0] != roleName || len(os.Args) != 3 && len(os.Args) != 4 {
		return
	}
	done := make(chan error)
	go func() { done <- play(os.Args[1], os.Args[2], os.Args[len(os.Args)-1]) }() // the main goroutine cannot leave its thread before main
	if err := <-done; err != nil {
		e := wire.AsError(err)
		fmt.Println(failed, e.Code, wire.Printable(e.Text, wire.MaxText))
		syscall.Exit(1)
	}
	syscall.Exit(0) // os.Exit sleeps for 1 s under the race detector
}

// play plays a role until that is over or the process is ended.
func play(role, socket, last string) error {
	switch role {
	case roleRaw:
		l, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		fmt.Println(ready)
		return (&rawPeer{held: map[int64]chan struct{}{}}).serve(l)
	case roleService:
		return serve(socket, last)
	case roleHoldRaw:
		return holdRaw(socket, last)
	case roleHoldLease:
		return holdLease(socket, last)
	}
	return fmt.Errorf("no role %q", role)
}

// A packet is what the service echoes.
type packet struct {
	Bytes []byte `msgpack:"b"`
}

// The methods of the service.
const (
	methodEcho   = "echo"   // packet, answered with it
	methodWeight = "weight" // answered with weight
	methodSink   = "sink"   // a raw stream: bytes until the client has finished, then how many they were
)

// A weight is what the service's process says of itself.
type weight struct {
	Memory     int64 `msgpack:"m"` // HeapInuse and StackInuse, in bytes
	Goroutines int64 `msgpack:"g"`
}

func serve(socket, endpoint string) error {
	mux := services.NewMux()
	services.Handle(mux, methodEcho, func(_ context.Context, p packet) (packet, error) { return p, nil })
	services.Handle(mux, methodWeight, func(context.Context, struct{}) (weight, error) {
		return weight{weigh(), int64(runtime.NumGoroutine())}, nil
	})
	services.HandleStream(mux, methodSink, func(_ context.Context, s *session.Stream) error {
		n, err := drain(s)
		if err == nil {
			_, err = s.Write(number(n))
		}
		if err == nil {
			err = s.CloseWrite()
		}
		return err
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}, Socket: socket, Ready: func() { fmt.Println(ready) }}
	return server.Serve(ctx)
}

func holdRaw(socket, name string) error {
	began := time.Now()
	n, err := strconv.Atoi(name)
	if err != nil {
		return err
	}
	conn, err := dialRaw(socket, rawHold, n)
	if err == nil {
		err = conn.send(nil)
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if err != nil {
		return err
	}
	fmt.Println(held, time.Since(began).Nanoseconds(), name)
	_, err = conn.Read(make([]byte, 1)) // until this process is killed
	return err
}

func holdLease(socket, name string) error {
	began := time.Now()
	s, err := client.Dial(context.Background(), network.Endpoint, client.Options{Socket: socket, Title: "bench"})
	if err != nil {
		return err
	}
	lease, err := network.Allocate(context.Background(), s, network.Request{Network: name})
	if err != nil {
		return err
	}
	fmt.Println(held, time.Since(began).Nanoseconds(), lease.Addresses[0].Addr())
	<-lease.Done() // until this process is killed
	return lease.Err()
}
