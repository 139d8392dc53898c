package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAThousandOpensAtTheSameMomentStartOneProcessAndAllSucceed(t *testing.T) {
	echo, err := echoService("serve")
	must(t, err)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{echo}})
	const opens = 1000
	begin := make(chan struct{})
	pids := make(chan int, opens)
	var opening sync.WaitGroup
	for range opens {
		opening.Go(func() {
			<-begin
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			s, err := client.Dial(ctx, echoEndpoint, client.Options{Socket: b.Socket})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := client.Call[echoReply](ctx, s, "echo", echoRequest{"hi"}); err != nil {
				t.Error(err)
			}
			pids <- s.Peer().PID
			s.Close()
		})
	}
	close(begin)
	opening.Wait()
	close(pids)
	seen := map[int]int{}
	for pid := range pids {
		seen[pid]++
	}
	if info := running(t, b, echoEndpoint); len(seen) != 1 || seen[info.PID] != opens || info.Starts != 1 || info.Instance != 1 {
		t.Errorf("sessions by process: %v, and the service: %+v", seen, info)
	}
}

func TestEveryFailureOfAStartReachesItsClientAtOnceAndSaysWhich(t *testing.T) {
	plain, script := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(plain, nil, 0o644), os.WriteFile(script, []byte("#!/does/not/exist\n"), 0o755))
	run := func(program ...string) servicefile.Service {
		return servicefile.Service{Program: program, StartTimeout: 3 * time.Second}
	}
	in := run("/bin/true")
	in.WorkingDirectory = "/does/not/exist"
	tests := map[string]struct {
		service servicefile.Service
		code    wire.Code
		says    []string
	}{
		"com.example.dies": {run("/bin/sh", "-c", "echo oh no >&2; echo really >&2; exit 3"), wire.StartFailed, []string{"exit status 3", "oh no | really"}},
		"com.example.stack": {run("/bin/sh", "-c", "echo useful >&2; printf %01800d 0 >&2; echo >&2; echo last >&2; exit 3"), wire.StartFailed,
			[]string{"useful | " + strings.Repeat("0", 200) + "… | last"}},
		"com.example.steers":     {run("/bin/sh", "-c", `printf 'oh \033[2J no' >&2; exit 3`), wire.StartFailed, []string{"exit status 3", `oh \x1b[2J no`}},
		"com.example.killed":     {run("/bin/sh", "-c", "kill -9 $$"), wire.StartFailed, []string{"signal: killed"}},
		"com.example.leaves":     {run("/bin/true"), wire.StartFailed, []string{"exit status 0", "before it registered"}},
		"com.example.missing":    {run("/does/not/exist"), wire.StartFailed, []string{"/does/not/exist", "no such file"}},
		"com.example.plain":      {run(plain), wire.StartFailed, []string{plain, "permission denied"}},
		"com.example.script":     {run(script), wire.StartFailed, []string{script, "no such file"}},
		"com.example.nowhere":    {in, wire.StartFailed, []string{"/does/not/exist", "no such file"}},
		"com.example.mute":       {run("/bin/sleep", "1000"), wire.StartTimeout, []string{"has not registered within 3s", "pid"}},
		"com.example.programles": {servicefile.Service{}, wire.Unavailable, []string{"no program"}},
	}
	var list []servicefile.Service
	for name, test := range tests {
		test.service.Name, test.service.Endpoints = name, []string{name}
		list = append(list, test.service)
	}
	b := brokertest.StartWith(t, broker.Config{Services: list})
	for name, test := range tests {
		_, err := client.Dial(within(t, patience), name, client.Options{Socket: b.Socket})
		if !errors.Is(err, test.code) {
			t.Errorf("%s: %v, want %s", name, err, test.code)
		}
		for _, says := range test.says {
			if err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v does not say %q", name, err, says)
			}
		}
	}
	// Whoever waits is told at the timeout, before the instance has been killed and reaped.
	until(t, "the broker knows how what it has killed ended", func() bool { return inspected(t, b, "com.example.mute").Last != nil })
	if last := inspected(t, b, "com.example.mute").Last; !strings.Contains(last.Why, "has not registered") {
		t.Errorf("the exit of what the broker has killed is %+v, and does not say why", last)
	}
	_, err := client.Dial(within(t, patience), "com.example.dise", client.Options{Socket: b.Socket})
	if !errors.Is(err, wire.UnknownEndpoint) || !strings.Contains(err.Error(), "com.example.dies") {
		t.Errorf("%v, want %s and the nearest name", err, wire.UnknownEndpoint)
	}
}

func TestOpensThatWaitAreHandedOverInTheOrderTheyCame(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	echo, err := echoService("serve")
	must(t, err)
	echo.Program = append([]string{"/bin/sh", "-c", `until [ -e "$0" ]; do sleep 0.01; done; exec "$@"`, gate}, echo.Program...)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{echo}})
	const opens = 100
	var opening sync.WaitGroup
	for n := range opens {
		opening.Go(func() {
			if s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket, Title: fmt.Sprint(n)}); err != nil {
				t.Error(err)
			} else {
				t.Cleanup(func() { s.Close() })
			}
		})
		until(t, "the open waits", func() bool {
			return ask[broker.ServiceDetails](t, b, broker.MethodService, broker.ServiceRequest{Name: echoEndpoint}).Waiting == n+1
		})
	}
	must(t, os.WriteFile(gate, nil, 0o600))
	opening.Wait()
	for n, s := range sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint}) {
		if s.Title != fmt.Sprint(n) {
			t.Fatalf("session %d is that of open %s", n, s.Title)
		}
	}
}

// The guard is the time of tryOpen: without, an open waits for as long as the service takes to start, whatever its client has said.
func TestAnOpenWaitsNoLongerThanItHasSaid(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: startedEndpoint, Endpoints: []string{startedEndpoint}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: time.Hour, StopTimeout: time.Second},
	}})
	conn, err := connect(b.Socket)
	must(t, err, say(conn, wire.KindOpen, wire.Open{Endpoint: startedEndpoint, Within: 200}))
	defer conn.Close()
	if err := answer(conn); !errors.Is(err, wire.DeadlineExceeded) && !errors.Is(err, wire.StartTimeout) {
		t.Errorf("it is answered with %v", err)
	}
}
