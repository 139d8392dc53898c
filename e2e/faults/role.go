package faults

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
)

// roleVariable has a program play an actor, and breakVariable has that break a promise.
const (
	roleVariable  = "FAULTS_ROLE"
	breakVariable = "FAULTS_BREAK"
)

// The promises that Config.Break may have actors break.
const (
	lieTwice      = "twice"      // a worker notes every 50th execution twice
	lieNever      = "never"      // or not at all
	lieOrder      = "order"      // or forgets that a one-way message has come
	lieReply      = "reply"      // or answers with another id
	lieDescriptor = "descriptor" // or keeps what it was passed
	lieGoroutine  = "goroutine"  // or leaves a goroutine behind
	lieSquat      = "squat"      // a lessee uses the address behind its own, too
)

// Play plays an actor and does not return, if this process was started as one. Whoever calls Run calls it first in its main function or TestMain.
func Play() {
	roles := map[string]func(args []string) error{
		"worker": playWorker, "crowd": playCrowd, "witness": playWitness, "resident": playResident, "hostile": playHostile,
	}
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	if err := roles[role](os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s %q: %v\n", role, os.Args[1:], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// playResident is a container's command: it uses the addresses of its environment until it is ended. Its arguments are the place and a name.
func playResident(args []string) error {
	var addresses []netip.Prefix
	for _, variable := range []string{"FAIRLEAD_ADDRESS", "FAIRLEAD_ADDRESS_2"} {
		for text := range strings.FieldsSeq(os.Getenv(variable)) {
			a, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			addresses = append(addresses, a)
		}
	}
	c := place(args[0]).claim(user{Who: "runtime " + args[1]}, addresses)
	defer c.release()
	fmt.Println(strings.Trim(fmt.Sprint(addresses), "[]"))
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
