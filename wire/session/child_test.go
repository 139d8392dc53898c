package session_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// serveChild serves the session on descriptor 3 until it ends. The method "last" replies with as many bytes as it is asked for, and then the
// service drains and exits at once.
func serveChild() {
	f := os.NewFile(3, "session")
	conn, err := socket.FromFile(f)
	if most, limited := os.LookupEnv(filesVariable); limited && err == nil {
		err = limitFiles(most)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	f.Close()
	var s *session.Session
	began := make(chan struct{})
	h := handler{streams: usual.streams, methods: methods{"echo": echo, "note": noted, "block": block, "ignore": ignore, "swap": swap, "give": give, "ask": ask}}
	h.methods["last"] = func(_ context.Context, m *session.Message) (any, error) {
		var n int
		if err := m.Decode(&n); err != nil {
			return nil, err
		}
		go func() {
			<-began
			if err := s.Drain(context.Background(), "the child exits"); err != nil {
				os.Exit(2)
			}
			os.Exit(0)
		}()
		return strings.Repeat("x", n), nil
	}
	if s, err = session.New(conn, session.Config{Endpoint: endpoint, Handler: h, Lane: lane}); err != nil {
		os.Exit(3)
	}
	close(began)
	s.Wait()
}

// A service is a child process that serves the other end of a session.
type service struct {
	*exec.Cmd
	reaped chan struct{}
}

// withChild returns the client's end of a session with a child process.
func withChild(t testing.TB, h session.Handler) (*session.Session, service) {
	t.Helper()
	leavesNothing(t)
	a, b := sockets(t)
	child := startChild(t, b, nil)
	c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true, Handler: h, Lane: lane})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		child.Process.Kill()
		<-child.reaped
		closes(t, c)
	})
	return c, child
}

// startChild starts a child process that serves the session on conn, which is closed here.
func startChild(t testing.TB, conn *net.UnixConn, as *syscall.SysProcAttr, environment ...string) service {
	t.Helper()
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childVariable+"=service", noSleep), environment...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = as
	err = cmd.Start()
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	child := service{cmd, make(chan struct{})}
	go func() { cmd.Wait(); close(child.reaped) }()
	return child
}

// stop stops the child and waits until it stands still.
func (s service) stop(t testing.TB) {
	t.Helper()
	if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the child stands still", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Process.Pid))
		_, state, _ := bytes.Cut(b, []byte(") "))
		return err == nil && bytes.HasPrefix(state, []byte("T"))
	})
}

func (s service) goOn(t testing.TB) {
	t.Helper()
	if err := s.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// limitFiles limits the open files of this process.
func limitFiles(most string) error {
	n, err := strconv.ParseUint(most, 10, 64)
	if err != nil {
		return err
	}
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
}
