package server_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestWhoCannotBeLookedForIsTakenForAHolder(t *testing.T) {
	for _, test := range []struct {
		name      string
		container bool
	}{{"a container", true}, {"a client of an earlier instance", false}} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			dir := folder(t)
			path := filepath.Join(dir, "s")
			suspect := container(t, path)
			pid := fmt.Sprint(suspect.PID())
			named := pid // by the broker
			if test.container {
				named = ""
			}
			s := run(t, "starved", path, filepath.Join(dir, "state"), named)
			said := make(chan string, 1)
			go func() {
				line, _ := s.stdout.ReadString('\n')
				said <- line
			}()
			select {
			case line := <-said:
				if !strings.Contains(line, "too many open files") {
					t.Errorf("it says %q", line)
				}
			case <-time.After(patience):
				t.Fatal("it does not say that it cannot look")
			}
			if err := unix.Prlimit(s.pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}, nil); err != nil {
				t.Fatal(err)
			}
			c := open(t, path)
			until(t, "the suspect is found", func() bool {
				_, err := network.Allocate(within(t, 100*time.Millisecond), c, network.Request{})
				if err == nil {
					t.Fatal("an address is given out")
				}
				return strings.Contains(err.Error(), "are gone: process "+pid+" (")
			})
			suspect.Signal(unix.SIGKILL)
			allocate(t, c, network.Request{})
		})
	}
}

func TestWhileItIsNotKnownWhatIsFreeNothingIsShownAsFree(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/24")
	for _, name := range []string{"leases.log", "started"} { // as at a first start
		if err := exec.Command("rm", filepath.Join(old.dir, name)).Run(); err != nil {
			t.Fatal(err)
		}
	}
	suspect := container(t, old.socket)
	look := make(chan struct{})
	config := server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Socket: old.socket}
	config.Suspects = func(ctx context.Context) ([]int, error) {
		select {
		case <-look:
		case <-ctx.Done():
		}
		return nil, nil
	}
	s := start(t, config)
	c := open(t, s.path)
	infos, err := network.Networks(within(t, 2*time.Second), c)
	if err != nil || infos[0].Free != 0 || infos[0].Orphaned != infos[0].Total {
		t.Errorf("before it has looked: %+v, %v", infos, err)
	}
	close(look)
	if infos, err := network.Networks(within(t, patience), c); err != nil || infos[0].Free != 0 {
		t.Errorf("after it has looked: %+v, %v", infos, err)
	}
	suspect.Signal(unix.SIGKILL)
	until(t, "the doubt ends", func() bool { return !s.InDoubt() })
	if infos, err := network.Networks(within(t, patience), c); err != nil || infos[0].Free != infos[0].Total {
		t.Errorf("when the suspect is gone: %+v, %v", infos, err)
	}
}

func TestTheListOfAFirstStartWaitsForTheLook(t *testing.T) {
	leavesNothing(t)
	look := make(chan struct{})
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), Suspects: func(context.Context) ([]int, error) {
		<-look
		return nil, nil
	}})
	c := open(t, s.path)
	shown := make(chan []network.NetworkInfo)
	go func() {
		infos, _ := network.Networks(t.Context(), c)
		shown <- infos
	}()
	select {
	case infos := <-shown:
		close(look)
		t.Fatalf("before it has looked: %+v", infos)
	case <-time.After(50 * time.Millisecond): // not an event: the absence of one
	}
	close(look)
	if infos := <-shown; len(infos) != 1 || infos[0].Free != infos[0].Total {
		t.Errorf("after it has looked: %+v", infos)
	}
}

func TestAnInstanceThatEndsBeforeItHasLookedLeavesTheDoubtToTheNext(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	config := server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "broker")}
	suspect := container(t, config.Socket)
	looking := config
	looking.Suspects = func(ctx context.Context) ([]int, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	first, err := listen(filepath.Join(dir, "first"), looking)
	if err != nil {
		t.Fatal(err)
	}
	first.end()
	refused(t, start(t, config), suspect.PID())
}

func TestAHolderThatCouldNotBeFoundAgainIsRefused(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	path := filepath.Join(dir, "s")
	cmd := exec.Command("/proc/self/exe", path, filepath.Join(dir, "state"), "default=10.9.0.0/24")
	cmd.Env = append(cmd.Environ(), role+"=service")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	inside, err := runner.Prepare(cmd, runner.Options{}) // the service is in a pid namespace of its own, and this process is not
	if refusal, ok := errors.AsType[*runner.ContainError](err); ok {
		t.Skip(refusal)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- inside.Run(ctx) }()
	defer func() { cancel(); <-done }()
	until(t, "the service listens", func() bool {
		s, err := dial(path)
		if err == nil {
			s.Close()
			s.Wait()
		}
		return err == nil
	})
	c := open(t, path)
	for range 2 {
		_, err := network.Allocate(within(t, patience), c, network.Request{})
		if !errors.Is(err, wire.Unsupported) || !strings.Contains(err.Error(), "pid namespace") {
			t.Errorf("from outside its pid namespace: %v", err)
		}
	}
	if leases := list(t, c); len(leases) != 0 {
		t.Errorf("listed are %+v", leases)
	}
}
