package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
)

// calmEndpoint is of a service as that of echoEndpoint, to which attackers say nothing.
const calmEndpoint = "com.example.calm"

// Weather is what a client that behaves well has met: at a service that is attacked, at one that is not, and at a server that is nothing but a Unix socket. What gets slower at the last
// is the machine, and what does at the second the broker.
type weather struct {
	Took        time.Duration
	Opens       int
	Open, Call  times // of the service that is attacked
	Calm, Asked times // of the other: open, and call
	Plain, Echo times // of the plain server: connect and the first answer; one more
	Errors      []string
}

// Times are the median and the 99th percentile of how long something took.
type times struct{ Half, Most time.Duration }

// timesOf returns those of none as 0.
func timesOf(all []time.Duration) (t times) {
	if len(all) > 0 {
		slices.Sort(all)
		t = times{all[len(all)/2], all[len(all)*99/100]}
	}
	return t
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

// logWeather tells how much slower everything was than quietly.
func logWeather(t *testing.T, quiet, met weather) {
	t.Helper()
	for _, row := range []struct {
		what       string
		quiet, met times
	}{
		{"open, the service attacked", quiet.Open, met.Open}, {"call, the service attacked", quiet.Call, met.Call},
		{"open, another service", quiet.Calm, met.Calm}, {"call, another service", quiet.Asked, met.Asked},
		{"plain socket: connect", quiet.Plain, met.Plain}, {"plain socket: echo", quiet.Echo, met.Echo},
	} {
		t.Logf("%-26s  quietly %9v half, %9v p99; beside %9v half, %9v p99: %.1f and %.1f times", row.what, row.quiet.Half.Round(time.Microsecond),
			row.quiet.Most.Round(time.Microsecond), row.met.Half.Round(time.Microsecond), row.met.Most.Round(time.Microsecond), ratio(row.met.Half, row.quiet.Half), ratio(row.met.Most, row.quiet.Most))
	}
	t.Logf("beyond the plain socket, p99 is %.1f times for an open of another service, %.1f for a call of it", ratio(met.Calm.Most, quiet.Calm.Most)/ratio(met.Plain.Most, quiet.Plain.Most),
		ratio(met.Asked.Most, quiet.Asked.Most)/ratio(met.Echo.Most, quiet.Echo.Most))
	t.Logf("rounds a second: %.0f, quietly %.0f", float64(met.Opens)/met.Took.Seconds(), float64(quiet.Opens)/quiet.Took.Seconds())
}

// playGood opens sessions, calls and closes them for a time, and prints how long that took. It does the same with the plain server at a path.
func playGood(args []string) error {
	lasts, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	var m weather
	var all [6][]time.Duration
	begun := time.Now()
	for ; time.Since(begun) < lasts; time.Sleep(15 * time.Millisecond) { // within the share of a user
		for i, use := range []func() (first, next time.Duration, err error){
			func() (first, next time.Duration, err error) { return openAndCall(echoEndpoint) },
			func() (first, next time.Duration, err error) { return openAndCall(calmEndpoint) },
			func() (first, next time.Duration, err error) { return connectAndEcho(args[1]) },
		} {
			first, next, err := use()
			if err != nil {
				m.Errors = append(m.Errors, err.Error())
				continue
			}
			all[2*i], all[2*i+1] = append(all[2*i], first), append(all[2*i+1], next)
		}
	}
	m.Took, m.Opens = time.Since(begun), len(all[0])
	for i, t := range []*times{&m.Open, &m.Call, &m.Calm, &m.Asked, &m.Plain, &m.Echo} {
		*t = timesOf(all[i])
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

func openAndCall(endpoint string) (open, call time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	s, err := client.Dial(ctx, endpoint, client.Options{})
	open = time.Since(begun)
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	begun = time.Now()
	reply, err := client.Call[text](ctx, s, "echo", text{"x"})
	call = time.Since(begun)
	if err == nil && reply.Text != "x" {
		err = errors.New("the echo of x is " + reply.Text)
	}
	return open, call, err
}

func connectAndEcho(path string) (connect, echo time.Duration, err error) {
	var b [1]byte
	begun := time.Now()
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	say := func() {
		if err == nil {
			_, err = conn.Write(b[:])
		}
		if err == nil {
			_, err = conn.Read(b[:])
		}
	}
	say()
	connect, begun = time.Since(begun), time.Now()
	say()
	return connect, time.Since(begun), err
}

// playPlain is a server that echoes what comes on connections to its argument, a path, until its standard input ends.
func playPlain(args []string) error {
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	go func() { io.Copy(io.Discard, os.Stdin); l.Close() }()
	fmt.Println("ready")
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}) // and not by splice(2)
		}()
	}
}
