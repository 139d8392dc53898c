package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// A holder is a process with sessions of the network service. It is told what to do by lines, and tells what happens by lines.
type holder struct {
	*process
	sessions int
}

// holder starts one with so many sessions, each for one lease on a network, with a hostname if it is not empty. They are open when its first line has come.
func (w *world) holder(sessions int, on, hostname string) holder {
	w.t.Helper()
	return holder{w.role("holder", strconv.Itoa(sessions), on, hostname), sessions}
}

// opened waits until the sessions are open.
func (h holder) opened(t *testing.T) {
	t.Helper()
	if line := h.stdout.next(t); line != "open" {
		t.Fatalf("the holder says %q", line)
	}
}

// A told is a holder's news of one of its sessions.
type told struct {
	Session string
	Lease   string
	Address string
	Error   *wire.Error // why there is no lease
	End     *wire.End   // how the session ended
	At      int64       // when, on the clock of monotonic
}

// allocate has it lease an address in each session, and returns what came of it.
func (h holder) allocate(t *testing.T) []told {
	t.Helper()
	h.say(t, "allocate")
	return h.told(t)
}

// told waits for a line of each session.
func (h holder) told(t *testing.T) []told {
	t.Helper()
	var all []told
	for range h.sessions {
		var news told
		if line := h.stdout.next(t); json.Unmarshal([]byte(line), &news) != nil {
			t.Fatalf("the holder says %q", line)
		}
		all = append(all, news)
	}
	return all
}

// leased is allocate for what must succeed.
func (h holder) leased(t *testing.T) []told {
	t.Helper()
	all := h.allocate(t)
	for _, a := range all {
		if a.Error != nil {
			t.Fatalf("allocate: %v", a.Error)
		}
	}
	return all
}

// calling stops the calls that "call" has begun, and returns how many there were, how many failed, and why.
func (h holder) calling(t *testing.T) (calls, failures int64, why string) {
	t.Helper()
	h.say(t, "stop")
	line := h.stdout.next(t)
	if _, err := fmt.Sscanf(line, "calls %d failures %d %q", &calls, &failures, &why); err != nil {
		t.Fatalf("the holder says %q: %v", line, err)
	}
	return calls, failures, why
}

// A holding is the holder's own side.
type holding struct {
	network, hostname string
	sessions          []*client.Session
	out               sync.Mutex

	stop            context.CancelFunc
	calling         sync.WaitGroup
	calls, failures atomic.Int64
	first           atomic.Pointer[string]
}

// playHolder plays the role.
func playHolder(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	h := &holding{network: args[1], hostname: args[2]}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range n {
		s, err := client.Dial(ctx, network.Endpoint, client.Options{Title: "holder"})
		if err != nil {
			return err
		}
		h.sessions = append(h.sessions, s)
	}
	fmt.Println("open")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "allocate":
			for _, s := range h.sessions {
				h.allocate(s)
			}
		case "call":
			h.callAll()
		case "stop":
			h.stop()
			h.calling.Wait()
			fmt.Printf("calls %d failures %d %q\n", h.calls.Load(), h.failures.Load(), *h.first.Load())
		}
	}
	return nil
}

// tell writes one line.
func (h *holding) tell(t told) {
	h.out.Lock()
	defer h.out.Unlock()
	json.NewEncoder(os.Stdout).Encode(t)
}

func (h *holding) allocate(s *client.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	news := told{Session: s.ID()}
	lease, err := network.Allocate(ctx, s, network.Request{Network: h.network, Hostname: h.hostname})
	if err == nil {
		news.Lease, news.Address = lease.ID, lease.Addresses[0].String()
		defer func() {
			go func() { // until the process ends
				<-lease.Done()
				at := monotonic()
				end := s.End()
				h.tell(told{Session: s.ID(), Lease: lease.ID, End: &end, At: at})
			}()
		}()
	}
	news.Error, news.At = wire.AsError(err), monotonic()
	h.tell(news)
}

// callAll calls on all sessions, each again and again.
func (h *holding) callAll() {
	none := ""
	h.first.Store(&none)
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	for _, s := range h.sessions {
		h.calling.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				h.call(s)
				<-tick.C
			}
		})
	}
}

func (h *holding) call(s *client.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := network.Networks(ctx, s)
	if err == nil && len(list) == 0 {
		err = errors.New("no networks")
	}
	h.calls.Add(1)
	if err != nil && h.failures.Add(1) == 1 {
		why := strings.ReplaceAll(err.Error(), "\n", " ")
		h.first.Store(&why)
	}
}
