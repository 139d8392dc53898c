package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// strangerVariable has the test's own program ask a broker, and print the code of the answer.
const strangerVariable = "CLIENT_TEST_STRANGER"

const (
	strangersTime  = 20 * time.Second // what a stranger gives a broker
	strangersDials = 100
)

func TestMain(m *testing.M) {
	if os.Getenv(strangerVariable) != "" {
		ctx, cancel := context.WithTimeout(context.Background(), strangersTime)
		defer cancel()
		for range strangersDials { // the broker may have answered and closed before, while or after the first frame is written
			_, err := client.Dial(ctx, endpoint, client.Options{Title: strings.Repeat("t", wire.MaxTitle)})
			fmt.Println(wire.CodeOf(err))
		}
		return
	}
	os.Exit(m.Run())
}

// asStranger returns a command that runs a copy of this test's binary as another user, at a broker's socket.
func asStranger(t *testing.T, at string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a client of another user")
	}
	const nobody = 65534
	folder := filepath.Dir(brokertest.Socket(t))
	program, err := os.ReadFile("/proc/self/exe")
	path := filepath.Join(folder, "program")
	if err := errors.Join(err, os.Chmod(folder, 0o755), os.WriteFile(path, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", strangerVariable+"=1", socket.Variable+"="+at)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestAStrangerIsToldEachTimeAndAtOnceThatItIsNotPermitted(t *testing.T) {
	b := brokertest.Start(t)
	cmd := asStranger(t, b.Socket)
	if err := os.Chmod(filepath.Dir(b.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, err := cmd.Output()
	if want := strings.Repeat(string(wire.NotPermitted)+"\n", strangersDials); err != nil || string(out) != want {
		t.Errorf("%q, %v, want %s each time", out, err, wire.NotPermitted)
	}
	operator := b.Dial(broker.Endpoint, client.Options{})
	status, err := client.Call[broker.Status](within(t, 10*time.Second), operator, broker.MethodStatus, nil)
	if err != nil || status.Denied != strangersDials {
		t.Errorf("the broker was asked %d times, %v, want %d", status.Denied, err, strangersDials)
	}
	if took := time.Since(began); took > strangersTime/2 {
		t.Errorf("it was told after %v", took)
	}
}

func TestThatThereIsNoBrokerHasACodeAndAReason(t *testing.T) {
	at := brokertest.Socket(t)
	_, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: at, NoWait: true})
	if none, ok := errors.AsType[*client.NoBrokerError](err); !ok || none.Path != at {
		t.Errorf("%v, want a NoBrokerError for %s", err, at)
	}
	for _, target := range []error{wire.Unavailable, fs.ErrNotExist} {
		if !errors.Is(err, target) {
			t.Errorf("%v is not %v", err, target)
		}
	}
	if code := wire.CodeOf(err); code != wire.Unavailable {
		t.Errorf("code %s, want %s", code, wire.Unavailable)
	}
}

func TestTheLoggerIsToldOnceOfAWaitForABrokerThatTakesLongerThanAMoment(t *testing.T) {
	at := brokertest.Socket(t)
	for within, want := range map[time.Duration]int{600 * time.Millisecond: 0, time.Minute: 1} {
		synctest.Test(t, func(t *testing.T) {
			var b strings.Builder
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := client.Dial(ctx, endpoint, client.Options{Socket: at, Logger: slog.New(slog.NewTextHandler(&b, nil))})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want its time to be over", err)
			}
			says := fmt.Sprintf(`level=INFO msg="no broker: waiting" endpoint=%s socket=%s err="connect: no such file or directory"`, endpoint, at)
			if text := b.String(); strings.Count(text, says) != want || strings.Count(text, "\n") != want {
				t.Errorf("within %v it is told %q, want %d times %s", within, text, want, says)
			}
		})
	}
}

func TestADeadlineThatPassesWhileThereIsNoBrokerIsBoth(t *testing.T) {
	at := brokertest.Socket(t)
	for n := range 20 { // it passes before an attempt, in one and behind it
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*time.Millisecond)
		_, err := client.Dial(ctx, endpoint, client.Options{Socket: at})
		cancel()
		if none, ok := errors.AsType[*client.NoBrokerError](err); !ok || none.Path != at {
			t.Errorf("%v, want a NoBrokerError for %s", err, at)
		}
		if !errors.Is(err, context.DeadlineExceeded) || wire.CodeOf(err) != wire.DeadlineExceeded {
			t.Errorf("%v has the code %s, want %s", err, wire.CodeOf(err), wire.DeadlineExceeded)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := client.Dial(ctx, endpoint, client.Options{Socket: at})
	if _, ok := errors.AsType[*client.NoBrokerError](err); !ok || !errors.Is(err, context.Canceled) || wire.CodeOf(err) != wire.Canceled {
		t.Errorf("%v has the code %s, want %s, and a NoBrokerError", err, wire.CodeOf(err), wire.Canceled)
	}

	mute, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	_, err = client.Dial(within(t, 50*time.Millisecond), endpoint, client.Options{Socket: at})
	if _, ok := errors.AsType[*client.NoBrokerError](err); ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("where a broker does not answer: %v, want %s and no NoBrokerError", err, wire.DeadlineExceeded)
	}
}
