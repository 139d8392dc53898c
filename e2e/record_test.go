package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAfterACrashWithADamagedRecordNoAddressOfALivingContainerIsGivenOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(path string, text []byte) error
		says   string
	}{
		{"whole", func(string, []byte) error { return nil }, "leases of an earlier instance are kept"},
		{"missing", func(path string, _ []byte) error { return os.Remove(path) }, "damaged"},
		{"truncated", func(path string, text []byte) error { return os.Truncate(path, int64(len(text)/2)) }, "damaged"},
		{"empty", func(path string, _ []byte) error { return os.Truncate(path, 0) }, "damaged"},
		{"garbled", func(path string, text []byte) error {
			for i := len(text) / 2; i < len(text); i += 3 {
				text[i] ^= 0x15
			}
			return os.WriteFile(path, text, 0o600)
		}, "damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			newWorld(t, one).crash(c.damage, c.says)
		})
	}
}

// crash kills the network service while a container holds the one address that there is, damages the record, and asks for the address before and after the
// end of the container. The next network service says so in its log.
func (w *world) crash(damage func(path string, text []byte) error, says string) {
	w.startBroker()
	r := w.run("--grace", "25s", "--", "sh", "-c", "trap '' TERM; echo up; read line") // it ends when it is told
	r.stdout.await(w.t, "up")
	w.killInstance()
	suspects := stage.Named(w.dir) // the runtime and its container
	record := filepath.Join(broker.StateDir(w.socket, network.Endpoint), "leases.log")
	text, err := os.ReadFile(record)
	if err == nil {
		err = damage(record, bytes.TrimRight(text, "\x00")) // behind what was written are zeros
	}
	if err != nil {
		w.t.Fatal(err)
	}

	s := w.dial(network.Endpoint)
	w.broker.stderr.await(w.t, says)
	lease, err := network.Allocate(within(w.t, 500*time.Millisecond), s, network.Request{})
	if lease != nil {
		w.t.Fatalf("%v was given out while its container lives", lease.Addresses)
	}
	if !errors.Is(err, wire.Unavailable) || !namesOneOf(err.Error(), suspects) {
		w.t.Errorf("allocate: %v, want unavailable, naming one of %v", err, suspects)
	}
	r.say(w.t, "end")
	if code := r.exit(w.t); code != 69 {
		w.t.Errorf("broker-run exits %d\n%v", code, r.stderr)
	}
	lease, err = network.Allocate(within(w.t, patience), s, network.Request{})
	if err != nil || lease.Addresses[0].String() != onlyAddress {
		w.t.Errorf("allocate when the container is gone: %+v: %v", lease, err)
	}
}

// namesOneOf reports whether the number of one of the processes is in text, as a whole. The broker's does not count.
func namesOneOf(text string, all []stage.Process) bool {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		if slices.ContainsFunc(all, func(s stage.Process) bool {
			return fmt.Sprint(s.PID) == word && !strings.HasSuffix(s.Args[0], "brokerd")
		}) {
			return true
		}
	}
	return false
}
