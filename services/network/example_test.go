package network_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire"
)

// A container runtime: a command that has an address for as long as it lives.
func Example() {
	cmd := exec.Command("sleep", "60")
	container, err := runner.Prepare(cmd, runner.Options{}) // nothing of cmd runs yet
	if err != nil {
		log.Fatal(err)
	}
	defer container.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	session, err := client.Dial(ctx, network.Endpoint, client.Options{Title: "my runtime"})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close() // gives the lease back
	lease, err := network.Allocate(ctx, session, network.Request{Hostname: "web", Witness: container.Witness()})
	if err != nil {
		log.Fatal(err)
	}

	cmd.Env = append(cmd.Environ(), runner.Environment([]*network.Lease{lease})...)
	if err := container.Run(context.Background(), lease); err != nil {
		log.Print(err) // a *runner.LostError when the network was lost
	}
}

// What can be done about a failure depends on its code.
func ExampleAllocate() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	session, err := client.Dial(ctx, network.Endpoint, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	lease, err := network.Allocate(ctx, session, network.Request{Network: "lab", Hostname: "web"})
	switch {
	case errors.Is(err, wire.Conflict):
		fmt.Println("process", wire.AsError(err).Holder.PID, "has the hostname")
	case errors.Is(err, wire.Exhausted):
		fmt.Println("all addresses are held by the living")
	case errors.Is(err, wire.Unavailable):
		fmt.Println("try again later:", err)
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(lease.Addresses[0], lease.MAC)
		<-lease.Done()
		fmt.Println("over:", lease.Err())
	}
}

// A witness keeps a lease's address from others while it lives, also when the session has ended.
func ExampleLease_AddWitness() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	session, err := client.Dial(ctx, network.Endpoint, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	lease, err := network.Allocate(ctx, session, network.Request{})
	if err != nil {
		log.Fatal(err)
	}
	guest, fd := exec.Command("sleep", "60"), -1
	guest.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd}
	if err := guest.Start(); err != nil {
		log.Fatal(err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	if err := lease.AddWitness(ctx, pidfd); err != nil {
		log.Print(err)
	}
	stop := context.AfterFunc(session.Context(), func() { guest.Process.Kill() })
	defer stop()
	log.Print(guest.Wait())
}

// All leases of a network.
func ExampleList() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	session, err := client.Dial(ctx, network.Endpoint, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	leases, err := network.List(ctx, session, network.ListRequest{Network: "lab"})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range leases {
		fmt.Println(l.Addresses, l.Hostname, l.State, l.Holder.PID)
	}
}
