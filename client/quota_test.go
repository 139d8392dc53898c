package client_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// full returns a server that refuses the first so many opens with err, and how many there were.
func full(times int64, err error) (services.Server, *atomic.Int64) {
	s, asked := server(), &atomic.Int64{}
	s.Accept = func(context.Context, services.Opening) error {
		if asked.Add(1) <= times {
			return err
		}
		return nil
	}
	return s, asked
}

func TestAnOpenOverALimitThatPassesIsAskedAgainWhenItWasTold(t *testing.T) {
	const retry, times = 20 * time.Millisecond, 3
	for name, use := range map[string]func(o client.Options) error{
		"dial": func(o client.Options) error {
			s, err := client.Dial(within(t, 10*time.Second), endpoint, o)
			if err == nil {
				s.Close()
			}
			return err
		},
		"connection": func(o client.Options) error {
			c := client.Connect(endpoint, o)
			defer c.Close()
			_, err := client.Call[string](within(t, 10*time.Second), c, "echo", "hi")
			return err
		},
	} {
		b := brokertest.Start(t)
		s, asked := full(times, &wire.Error{Code: wire.OverQuota, Text: "no room", Retry: retry})
		b.Serve(s)
		began := time.Now()
		if err := use(client.Options{Socket: b.Socket}); err != nil || asked.Load() != times+1 {
			t.Errorf("%s: %v, asked %d times, want %d", name, err, asked.Load(), times+1)
		}
		if took := time.Since(began); took < times*retry {
			t.Errorf("%s: it asked %d times in %v, and was told to wait %v each time", name, times+1, took, retry)
		}
	}
}

func TestAnOpenOverALimitIsAskedOnceWhereWaitingIsNoHelpOrNotWanted(t *testing.T) {
	for name, test := range map[string]struct {
		refusal wire.Error
		noWait  bool
	}{
		"it does not pass":     {wire.Error{Code: wire.OverQuota}, false},
		"it passed before":     {wire.Error{Code: wire.OverQuota, Retry: -time.Second}, false},
		"nobody waits":         {wire.Error{Code: wire.OverQuota, Retry: time.Millisecond}, true},
		"it is another reason": {wire.Error{Code: wire.Suspended, Retry: time.Millisecond}, false},
	} {
		b := brokertest.Start(t)
		s, asked := full(math.MaxInt64, &test.refusal)
		b.Serve(s)
		_, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: b.Socket, NoWait: test.noWait})
		e, ok := errors.AsType[*wire.Error](err)
		if !ok || e.Code != test.refusal.Code || e.Retry != test.refusal.Retry || asked.Load() != 1 {
			t.Errorf("%s: %v, asked %d times, want %s once", name, err, asked.Load(), test.refusal.Code)
		}
	}
}

func TestADeadlineThatPassesOverALimitNamesTheLimit(t *testing.T) {
	for name, retry := range map[string]time.Duration{"a minute": time.Minute, "for ever": math.MaxInt64} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := brokertest.Start(t)
			s, asked := full(math.MaxInt64, &wire.Error{Code: wire.OverQuota, Text: "no room for one more", Retry: retry})
			b.Serve(s)
			var told strings.Builder
			_, err := client.Dial(within(t, time.Second), endpoint, client.Options{Socket: b.Socket, Logger: slog.New(slog.NewTextHandler(&told, nil))})
			if text := told.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `msg="not opened yet: waiting" endpoint=`+endpoint) || !strings.Contains(text, "code=over_quota") {
				t.Errorf("the Logger is told %q, want of the limit, once", text)
			}
			if wire.CodeOf(err) != wire.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no room for one more (over_quota)") {
				t.Errorf("%v, want %s and the limit", err, wire.DeadlineExceeded)
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("it asked %d times, want once", n)
			}
		})
	}
}

func TestABrokerThatIsOverItsLimitIsNotAskedWithoutPause(t *testing.T) {
	path := brokertest.Socket(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer listener.Close()
	asked := 0
	serving.Go(func() { // a broker that answers every open at once
		refusal, err := wire.NewFrame(wire.KindRefused, 0, wire.Error{Code: wire.OverQuota, Text: "full", Origin: wire.Broker, Retry: 1})
		if err != nil {
			t.Error(err)
			return
		}
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			if _, _, err := socket.ReadFrame(conn); err == nil {
				asked++
				socket.WriteFrame(conn, refusal)
			}
			conn.Close()
		}
	})
	const patience = 200 * time.Millisecond
	began := time.Now()
	_, err = client.Dial(within(t, patience), endpoint, client.Options{Socket: path})
	took := time.Since(began)
	listener.Close()
	serving.Wait()
	if wire.CodeOf(err) != wire.DeadlineExceeded {
		t.Errorf("%v, want %s", err, wire.DeadlineExceeded)
	}
	if most := int(took/(5*time.Millisecond)) + 1; asked < 2 || asked > most {
		t.Errorf("told to wait for 1 ns, it asked %d times in %v, want 2 to %d", asked, took, most)
	}
}
