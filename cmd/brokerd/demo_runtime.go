package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
)

// The words that begin a line of a runtime's output; an address follows.
const (
	wordLeased  = "leased"  // by the runtime: it has its lease
	wordRunning = "running" // by what runs in the container
)

// runtimeMain is a container runtime of the demo.
func runtimeMain(args []string) int {
	flags := pflag.NewFlagSet("brokerd demo runtime", pflag.ContinueOnError)
	socket := flags.String("socket", "", "path of the broker's socket")
	name := flags.String("name", "", "the container's title and hostname")
	contain := flags.String("contain", "", "require or best")
	if code, ok := parse(flags, args, "A container runtime of the demo."); !ok {
		return code
	}
	err := runContainer(*socket, *name, runner.Contain(*contain))
	if err != nil {
		cli.Fail(os.Stderr, "runtime of "+*name, err, "")
	}
	return runner.ExitStatus(err)
}

// runContainer is all that a runtime has to do.
func runContainer(socket, name string, contain runner.Contain) error {
	ctx, cancel := context.WithTimeout(context.Background(), demoPatience)
	defer cancel()
	cmd := self(containerRole, "--socket", socket)
	cmd.Stdout = os.Stdout
	container, err := runner.Prepare(cmd, runner.Options{Contain: contain})
	if err != nil {
		return err
	}
	defer container.Close()
	session, err := client.Dial(ctx, network.Endpoint, client.Options{Socket: socket, Title: name})
	if err != nil {
		return err
	}
	defer session.Close()
	lease, err := network.Allocate(ctx, session, network.Request{Hostname: name, Witness: container.Witness()})
	if err != nil {
		return err
	}
	fmt.Println(wordLeased, lease.Addresses[0])
	return container.Run(context.Background(), lease)
}

// containerMain is what runs in a container of the demo: it says its address and waits for its end. The path of the socket is there for
// people who look at it with ps.
func containerMain([]string) int {
	fmt.Println(wordRunning, os.Getenv("FAIRLEAD_ADDRESS"))
	time.Sleep(time.Hour) // longer than any demo
	return exitOK
}
