package broker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestRefusalsThatAPeerCausesAreLoggedAtALimitedRate(t *testing.T) {
	leavesNothing(t)
	lines := &log{}
	b := brokertest.StartWith(t, broker.Config{Logger: lines.logger()})
	const times = 500
	began := time.Now()
	for range times {
		conn, _, err := socket.Connect(within(t, 10*time.Second), b.Socket)
		if err != nil {
			t.Fatal(err)
		}
		f := wire.Frame{Header: wire.Header{Kind: wire.KindRegister, Length: 1}, Body: []byte{0xc1}} // no msgpack
		if err := socket.WriteFrame(conn, f); err != nil {
			t.Fatal(err)
		}
		if answer, _, err := socket.ReadFrame(conn); err != nil || answer.Kind != wire.KindRefused {
			t.Fatalf("%v, %v, want refused", answer.Kind, err)
		}
		conn.Close()
	}
	most := 10 * (int(time.Since(began)/time.Second) + 2)
	if n := lines.count("registration refused"); n == 0 || n > most {
		t.Errorf("%d refusals in %v are logged in %d lines, want 1 to %d", times, time.Since(began), n, most)
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
