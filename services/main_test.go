package services_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
)

// roleVariable has the test's own program play a process that a test needs.
const roleVariable = "SERVICES_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "heir" {
		openWithAnHeir()
		return
	}
	os.Exit(m.Run())
}

// openWithAnHeir opens a session and starts a child that has a copy of its socket. It ends when its standard input does.
func openWithAnHeir() {
	s, err := client.Dial(context.Background(), endpoint, client.Options{})
	if err != nil {
		panic(err)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		panic(err)
	}
	child := exec.Command("sleep", "1000")
	raw.Control(func(fd uintptr) {
		child.ExtraFiles = []*os.File{os.NewFile(fd, "session")}
		err = child.Start()
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(child.Process.Pid)
	io.Copy(io.Discard, os.Stdin)
}

const endpoint = "com.example.test"

// startBroker has a broker serve until the test ends, and returns its socket's path.
func startBroker(t *testing.T) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), "b.sock")
	b, err := broker.New(broker.Config{Socket: at})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return at
}

// startServer has a server serve until the returned function is called, or the test ends.
func startServer(t *testing.T, s services.Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{}, 10)
	s.Ready = func() { ready <- struct{}{} }
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx); close(done) }()
	stop = func() error { cancel(); return <-done }
	t.Cleanup(func() { stop() })
	wait(t, "the registration", ready)
	return stop
}

func wait[T any](t *testing.T, what string, done <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: not within 10 s", what)
	}
	return v
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
