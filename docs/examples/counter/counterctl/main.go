// Command counterctl adds one to a counter, and prints where it stands.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/docs/examples/counter"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	patience = 10 * time.Second // for the broker, the service and its reply
	pause    = 100 * time.Millisecond
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: counterctl COUNTER")
		os.Exit(2)
	}
	total, err := add(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "counterctl:", err)
		os.Exit(1)
	}
	fmt.Println(os.Args[1], total.Total)
}

// add adds one to a counter. It waits for a service that is not registered yet.
func add(name string) (counter.Total, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection := client.Connect(counter.Endpoint, client.Options{Title: "counterctl", Logger: slog.Default()})
	defer connection.Close()
	for {
		total, err := client.Call[counter.Total](ctx, connection, "add", counter.Add{Counter: name, By: 1})
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Sent || e.Code != wire.UnknownEndpoint {
			return total, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return total, err
		}
	}
}
