package services_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
)

// roleVariable has the test's own program play a process that a test needs.
const roleVariable = "SERVICES_TEST_ROLE"

// roles are the processes that tests need.
var roles = map[string]func(){
	"heir":   openWithAnHeir,
	"opener": openOnce,
	"server": serveState,
}

const noSleep = "GORACE=atexit_sleep_ms=0" // the race detector's own rest before an exit

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		role()
		os.Exit(0)
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
