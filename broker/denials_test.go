package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// The guard is denials.warn, for each place that logs a refusal.
func TestRefusalsThatAPeerCausesAreLoggedAtALimitedRate(t *testing.T) {
	none := func() (quota.Limits, []*servicefile.Problem) { // of opens that wait, for this user
		all := quota.Defaults()
		all.Own[quota.Waiting] = 0
		return all, nil
	}
	says := func(f wire.Frame) func(*testing.T, string) func() error {
		return func(t *testing.T, at string) func() error {
			return func() error {
				conn, err := connect(at)
				must(t, err, socket.WriteFirst(conn, f))
				defer conn.Close()
				return answer(conn)
			}
		}
	}
	open, err := wire.NewFrame(wire.KindOpen, 0, wire.Open{Endpoint: broker.Endpoint})
	must(t, err)
	for line, test := range map[string]struct {
		root    bool
		quotas  func() (quota.Limits, []*servicefile.Problem)
		refused func(t *testing.T, at string) func() error
	}{
		"registration refused": {false, nil, says(wire.Frame{Header: wire.Header{Kind: wire.KindRegister, Length: 1}, Body: []byte{0xc1}})}, // no msgpack
		"over quota":           {false, none, says(open)},
		"denied": {true, nil, func(t *testing.T, at string) func() error {
			stranger := asks(t, asStranger(t).Path, at, syscall.Credential{Uid: nobody, Gid: nobody})
			return func() error {
				if g := stranger.ask(t, wish{Open: echoEndpoint}); g.Code != "" {
					return wire.Errorf(g.Code, "%s", g.Text)
				}
				return nil
			}
		}},
	} {
		t.Run(line, func(t *testing.T) {
			if test.root {
				needsRoot(t)
			}
			leavesNothing(t)
			lines := &log{}
			b := brokertest.StartWith(t, broker.Config{Logger: lines.logger(), Quotas: test.quotas})
			must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
			refused := test.refused(t, b.Socket)
			const times = 300
			began := time.Now()
			for range times {
				if refused() == nil {
					t.Fatal("it is not refused")
				}
			}
			most := 10 * (int(time.Since(began)/time.Second) + 2)
			until(t, "it is logged", func() bool { return lines.count(line) > 0 })
			if n := lines.count(line); n > most {
				t.Errorf("%d refusals in %v are logged in %d lines, want at most %d", times, time.Since(began), n, most)
			}
		})
	}
}

func TestAnInstanceTellsOnlyOfItsOwnSessions(t *testing.T) {
	leavesNothing(t)
	b := brokertest.Start(t)
	b.Serve(echoServer())
	s := b.Dial(echoEndpoint, client.Options{})
	all := broker.SessionsRequest{Endpoint: echoEndpoint, State: "all"}
	until(t, "the session is told of", func() bool {
		list := sessions(t, b, all)
		return len(list) == 1 && list[0].State == broker.SessionOpen
	})
	before := sessions(t, b, all)[0]
	liar, err := register(b.Socket, wire.Register{Service: "com.example.liar", Endpoints: []string{"com.example.lie"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range []wire.SessionInfo{
		{ID: s.ID(), Endpoint: "com.example.lie", OpenedAt: 1},
		{ID: s.ID(), Endpoint: echoEndpoint, OpenedAt: 1, ClosedAt: 2, End: &wire.End{Code: wire.Invalid, Origin: wire.Local}},
		{ID: strings.Repeat("0", 32), Endpoint: echoEndpoint, OpenedAt: 1},
	} {
		told := wire.Sessions{Sessions: []wire.SessionInfo{info}}
		if err := liar.Call(within(t, 5*time.Second), wire.MethodSessions, told, nil); err != nil {
			t.Fatal(err)
		}
	}
	lose(liar)
	if list := sessions(t, b, all); len(list) != 1 || list[0] != before {
		t.Errorf("after the lies there is %+v, want %+v", list, before)
	}
}
