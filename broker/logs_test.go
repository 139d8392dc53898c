package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// readLog reads a log to its end.
func readLog(ctx context.Context, s *client.Session, r broker.LogsRequest) (string, error) {
	chunks, err := client.OpenStreaming[broker.LogChunk, struct{}](ctx, s, broker.MethodLogs, r)
	if err != nil {
		return "", err
	}
	defer chunks.Close()
	var text strings.Builder
	for {
		c, err := chunks.Receive()
		if errors.Is(err, io.EOF) {
			return text.String(), nil
		}
		if err != nil {
			return text.String(), err
		}
		text.Write(c.Data)
	}
}

// lines returns numbered lines.
func lines(from, to int) string {
	var text strings.Builder
	for n := from; n < to; n++ {
		fmt.Fprintf(&text, "line %d\n", n)
	}
	return text.String()
}

// logged starts a broker of a service whose log is there already; empty: it is not.
func logged(t *testing.T, text string) (b *brokertest.Broker, path string) {
	t.Helper()
	b = brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{shell(startedEndpoint, "echo said; echo complained >&2; exit 1", "")}})
	path = broker.LogPath(b.Socket, startedEndpoint)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if text != "" {
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return b, path
}

func TestTheLastLinesOfALogAreSent(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, test := range []struct {
		name, text string
		lines      int
		want       string
	}{
		{"as many as are asked for", lines(0, 200), 3, lines(197, 200)},
		{"100 if none are", lines(0, 200), 0, lines(100, 200)},
		{"all that there are", lines(0, 2), 5, lines(0, 2)},
		{"with one that is not finished", lines(0, 9) + "line", 2, lines(8, 9) + "line"},
		{"empty ones count", "a\n\n\n", 2, "\n\n"},
		{"more than fits into one message", long + "\n" + long + "\n", 2, long + "\n" + long + "\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, _ := logged(t, test.text)
			s := b.Dial(broker.Endpoint, client.Options{})
			got, err := readLog(within(t, patience), s, broker.LogsRequest{Name: startedEndpoint, Lines: test.lines})
			if err != nil || got != test.want {
				t.Errorf("%.200q, %v, want %.200q", got, err, test.want)
			}
		})
	}
}

func TestALogHasWhatTheProgramSays(t *testing.T) {
	b, _ := logged(t, "")
	s := b.Dial(broker.Endpoint, client.Options{})
	if _, err := readLog(within(t, patience), s, broker.LogsRequest{Name: startedEndpoint}); !errors.Is(err, wire.NotFound) {
		t.Errorf("of what was never started: %v, want %s", err, wire.NotFound)
	}
	if _, err := dial(t, b, startedEndpoint); !errors.Is(err, wire.StartFailed) {
		t.Fatal(err)
	}
	got, err := readLog(within(t, patience), s, broker.LogsRequest{Name: startedEndpoint})
	if err != nil || !strings.Contains(got, "said\n") || !strings.Contains(got, "complained\n") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestALogThatIsFollowedGoesOnOverRotations(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("that is not there yet: %t", late), func(t *testing.T) {
			first := lines(0, 10)
			if late {
				first = ""
			}
			b, path := logged(t, first)
			s := b.Dial(broker.Endpoint, client.Options{})
			ctx, cancel := context.WithCancel(within(t, patience))
			defer cancel()
			chunks, err := client.OpenStreaming[broker.LogChunk, struct{}](ctx, s, broker.MethodLogs, broker.LogsRequest{Name: startedEndpoint, Lines: 5, Follow: true})
			must(t, err)
			defer chunks.Close()
			var got strings.Builder
			comes := func(what string) {
				t.Helper()
				for got.Len() < len(what) {
					c, err := chunks.Receive()
					must(t, err)
					got.Write(c.Data)
				}
				if got.String() != what {
					t.Fatalf("%q, want %q", got.String(), what)
				}
				got.Reset()
			}
			add := func(text string) {
				t.Helper()
				f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				must(t, err)
				_, err = f.WriteString(text)
				must(t, err, f.Close())
			}
			if !late {
				comes(lines(5, 10))
			}
			add(lines(10, 11))
			comes(lines(10, 11))
			for n := 11; n < 17; n += 3 {
				add(lines(n, n+1))
				must(t, os.Rename(path, path+".1")) // as a keeper does, which has written its last line to it
				add(lines(n+1, n+2))
				add(lines(n+2, n+3))
				comes(lines(n, n+3))
			}
			cancel()
			if _, err := chunks.Receive(); !errors.Is(err, context.Canceled) {
				t.Errorf("the end: %v, want %v", err, context.Canceled)
			}
		})
	}
}

func TestABrokerThatIsStoppedWaitsForNobodyWhoFollowsALog(t *testing.T) {
	leavesNothing(t)
	b, _ := logged(t, lines(0, 1))
	s, err := dial(t, b, broker.Endpoint)
	must(t, err)
	defer s.Wait()
	defer s.Close()
	chunks, err := client.OpenStreaming[broker.LogChunk, struct{}](within(t, patience), s, broker.MethodLogs, broker.LogsRequest{Name: startedEndpoint, Follow: true})
	must(t, err)
	_, err = chunks.Receive()
	must(t, err)
	b.Stop()
	if _, err := chunks.Receive(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the end: %v, want one that says that it was cut off", err)
	}
	chunks.Close()
}

func TestWhatIsNoLogIsNotSent(t *testing.T) {
	secret := "precious\n"
	for _, test := range []struct {
		name string
		set  func(t *testing.T, path, elsewhere string) error
	}{
		{"a link", func(_ *testing.T, path, elsewhere string) error { return os.Symlink(elsewhere, path) }},
		{"in a folder that is a link", func(_ *testing.T, path, elsewhere string) error {
			folder := filepath.Dir(path)
			return errors.Join(os.Rename(elsewhere, filepath.Join(filepath.Dir(elsewhere), filepath.Base(path))), os.RemoveAll(folder),
				os.Symlink(filepath.Dir(elsewhere), folder))
		}},
		{"in a folder that others can write", func(_ *testing.T, path, _ string) error {
			return errors.Join(os.WriteFile(path, []byte(secret), 0o600), os.Chmod(filepath.Dir(path), 0o777))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, path := logged(t, "")
			elsewhere := filepath.Join(t.TempDir(), "elsewhere")
			must(t, os.WriteFile(elsewhere, []byte(secret), 0o600), test.set(t, path, elsewhere))
			s := b.Dial(broker.Endpoint, client.Options{})
			for _, follow := range []bool{false, true} {
				got, err := readLog(within(t, patience), s, broker.LogsRequest{Name: startedEndpoint, Follow: follow})
				if got != "" || err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("followed: %t: %q, %v", follow, got, err)
				}
			}
		})
	}
}

func TestAServiceWhoseOutputGoesElsewhereSaysWhere(t *testing.T) {
	s := shell(startedEndpoint, "exit 1", "")
	s.Stdout, s.Stderr = "/dev/null", servicefile.Inherit
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	own := b.Dial(broker.Endpoint, client.Options{})
	_, err := readLog(within(t, patience), own, broker.LogsRequest{Name: startedEndpoint})
	if !errors.Is(err, wire.NotFound) || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("%v, want %s and where", err, wire.NotFound)
	}
	if _, err := readLog(within(t, patience), own, broker.LogsRequest{Name: startedEndpoint, Lines: 1 << 30}); !errors.Is(err, wire.Malformed) {
		t.Errorf("too many lines: %v, want %s", err, wire.Malformed)
	}
}
