package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

var (
	id      = strings.Repeat("0123456789abcdef", 2)
	process = wire.Process{PID: 42, UID: 1000, GID: 1000, Program: "web"}
	end     = &wire.End{Code: wire.Interrupted, Origin: wire.Broker, Text: "closed by an operator"}
)

// messages returns a fresh value of every message.
func messages() []any {
	return []any{
		&wire.Open{}, &wire.Routed{}, &wire.Accepted{}, &wire.Error{}, &wire.Register{}, &wire.Sessions{}, &wire.HandOver{}, &wire.Request{},
		&wire.Notice{}, &wire.Stream{}, &wire.End{}, &wire.SessionRef{}, &wire.Inspection{}, &wire.Idle{},
	}
}

// examples returns a full value of every message, in the order of messages.
func examples() []any {
	limits := wire.Limits{Calls: 1, OneWay: 2, Bytes: 3, Files: 4}
	info := wire.SessionInfo{ID: id, Endpoint: "com.example.echo", Title: "web", OpenedAt: 1, ClosedAt: 2, End: end, Client: process}
	return []any{
		&wire.Open{Endpoint: "com.example.echo", Within: 2000, Title: "web", Features: []string{"lane"}, Limits: limits},
		&wire.Routed{Session: id, Service: "com.example", Instance: 3, Process: process},
		&wire.Accepted{Features: []string{"lane"}, Limits: limits},
		&wire.Error{Code: wire.Conflict, Text: "taken", Origin: wire.Peer, Holder: &wire.Holder{PID: 1, UID: 2, Service: "s", Lease: "l"}, Retry: 5},
		&wire.Register{Service: "com.example", Instance: 3, Endpoints: []string{"com.example.echo"}, Features: []string{"lane"}, Sessions: []wire.SessionInfo{info}},
		&wire.Sessions{Sessions: []wire.SessionInfo{info, info}},
		&wire.HandOver{
			Session: id, Endpoint: "com.example.echo", Title: "web", Features: []string{"lane", "relay"}, Limits: limits, Client: process, Socket: os.Stdin,
			Routed: &wire.Routed{Session: id, Service: "com.example", Instance: 3, Process: process},
		},
		&wire.Request{Method: "echo", Within: 2000, Value: wire.Raw{0xa2, 'h', 'i'}},
		&wire.Notice{Name: wire.NoticeFacts, Handled: 1, Bytes: 2, Files: 3, Facts: map[string]string{"a": "1", "b": "2"}},
		&wire.Stream{Method: "follow", Within: 2000, Value: wire.Raw{0xa2, 'h', 'i'}},
		end,
		&wire.SessionRef{Session: id, Text: "why"},
		&wire.Inspection{CallsServed: 1, Streams: 2, Facts: map[string]string{"a": "1"}, Socket: math.MaxUint64},
		&wire.Idle{Ended: true},
	}
}

func TestEveryMessageSurvivesItsJourney(t *testing.T) {
	fresh := messages()
	for i, v := range examples() {
		b, files, err := wire.MarshalFiles(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.UnmarshalFiles(b, files, fresh[i]); err != nil || !reflect.DeepEqual(fresh[i], v) {
			t.Errorf("%T: %+v, %v, want %+v", v, fresh[i], err, v)
		}
		for n := range b {
			if err := wire.Unmarshal(b[:n], messages()[i]); !errors.Is(err, wire.Malformed) {
				t.Errorf("%T cut after %d of %d bytes: %v, want %v", v, n, len(b), err, wire.Malformed)
			}
		}
		if err := wire.Unmarshal(append(b, 0xc0), messages()[i]); !errors.Is(err, wire.Malformed) {
			t.Errorf("%T with a byte more: %v, want %v", v, err, wire.Malformed)
		}
	}
}

func TestAMessageIsEncodedTheSameEveryTime(t *testing.T) {
	facts := map[string]string{}
	for i := range 16 {
		facts[fmt.Sprint(i)] = "x"
	}
	first, err := wire.Marshal(wire.Notice{Facts: facts})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if b, _ := wire.Marshal(wire.Notice{Facts: facts}); !bytes.Equal(b, first) {
			t.Fatalf("%x, and before %x", b, first)
		}
	}
}

func TestWhatCannotBeEncodedIsMalformed(t *testing.T) {
	for _, v := range []any{make(chan int), func() {}, struct{ C chan int }{make(chan int)}} {
		if _, err := wire.Marshal(v); !errors.Is(err, wire.Malformed) {
			t.Errorf("%T: %v, want %v", v, err, wire.Malformed)
		}
		if _, err := wire.NewFrame(wire.KindReply, 1, v); !errors.Is(err, wire.Malformed) {
			t.Errorf("frame of %T: %v, want %v", v, err, wire.Malformed)
		}
	}
}

func TestValidateHoldsEveryBound(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	list := func(n int) []string { return strings.Split(strings.Repeat("x,", n-1)+"x", ",") }
	info := func(change func(*wire.SessionInfo)) []wire.SessionInfo {
		s := wire.SessionInfo{ID: id, Endpoint: "e"}
		change(&s)
		return []wire.SessionInfo{s}
	}
	batch := func(n int) []wire.SessionInfo {
		l := make([]wire.SessionInfo, n)
		for i := range l {
			l[i] = wire.SessionInfo{ID: id, Endpoint: "e"}
		}
		return l
	}
	for i, test := range []struct {
		v  interface{ Validate() error }
		ok bool
	}{
		{&wire.Open{Endpoint: "e", Title: long(wire.MaxTitle), Features: list(wire.MaxFeatures)}, true},
		{&wire.Open{Endpoint: "e", Title: long(wire.MaxTitle + 1)}, false},
		{&wire.Open{Endpoint: "e", Features: list(wire.MaxFeatures + 1)}, false},
		{&wire.Open{Endpoint: "e", Features: []string{long(wire.MaxEndpoint)}}, true},
		{&wire.Open{Endpoint: "e", Features: []string{long(wire.MaxEndpoint + 1)}}, false},
		{&wire.Open{Endpoint: ""}, false},
		{&wire.Open{Endpoint: "e", Within: -1}, false},
		{&wire.Routed{Session: id, Service: "s", Process: wire.Process{Program: long(wire.MaxFact)}}, true},
		{&wire.Routed{Session: id, Service: "s", Process: wire.Process{Program: long(wire.MaxFact + 1)}}, false},
		{&wire.Routed{Session: "x", Service: "s"}, false},
		{&wire.Routed{Session: id, Service: "not one"}, false},
		{&wire.Accepted{Features: list(wire.MaxFeatures + 1)}, false},
		{&wire.Register{Service: "s", Endpoints: list(wire.MaxEndpoints), Sessions: batch(wire.MaxBatch)}, true},
		{&wire.Register{Service: "s", Endpoints: list(wire.MaxEndpoints + 1)}, false},
		{&wire.Register{Service: "s"}, false},
		{&wire.Register{Service: "", Endpoints: []string{"e"}}, false},
		{&wire.Register{Service: "s", Endpoints: []string{"e", "not one"}}, false},
		{&wire.Register{Service: "s", Endpoints: []string{"e"}, Features: list(wire.MaxFeatures + 1)}, false},
		{&wire.Register{Service: "s", Endpoints: []string{"e"}, Sessions: batch(wire.MaxBatch + 1)}, false},
		{&wire.Sessions{Sessions: batch(wire.MaxBatch)}, true},
		{&wire.Sessions{Sessions: batch(wire.MaxBatch + 1)}, false},
		{&wire.Sessions{Sessions: info(func(s *wire.SessionInfo) { s.ID = "x" })}, false},
		{&wire.Sessions{Sessions: info(func(s *wire.SessionInfo) { s.Endpoint = ".." })}, false},
		{&wire.Sessions{Sessions: info(func(s *wire.SessionInfo) { s.Title = long(wire.MaxTitle + 1) })}, false},
		{&wire.Sessions{Sessions: info(func(s *wire.SessionInfo) { s.Client.Program = long(wire.MaxFact + 1) })}, false},
		{&wire.Sessions{Sessions: info(func(s *wire.SessionInfo) { s.End = &wire.End{} })}, false},
		{&wire.Sessions{Sessions: info(func(s *wire.SessionInfo) { s.End = end })}, true},
		{&wire.HandOver{Session: id, Endpoint: "e", Socket: os.Stdin}, true},
		{&wire.HandOver{Session: id, Endpoint: "e", Socket: os.Stdin, Routed: &wire.Routed{Session: id, Service: "s"}}, true},
		{&wire.HandOver{Session: id, Endpoint: "e", Socket: os.Stdin, Routed: &wire.Routed{Session: "x", Service: "s"}}, false},
		{&wire.HandOver{Session: id, Endpoint: "e"}, false},
		{&wire.HandOver{Session: "x", Endpoint: "e", Socket: os.Stdin}, false},
		{&wire.HandOver{Session: id, Endpoint: "e", Socket: os.Stdin, Title: long(wire.MaxTitle + 1)}, false},
		{&wire.Request{Method: long(wire.MaxMethod), Length: wire.MaxLarge}, true},
		{&wire.Request{Method: long(wire.MaxMethod + 1)}, false},
		{&wire.Request{}, false},
		{&wire.Request{Method: "m", Within: -1}, false},
		{&wire.Request{Method: "m", Length: -1}, false},
		{&wire.Request{Method: "m", Length: wire.MaxLarge + 1}, false},
		{&wire.Stream{Method: long(wire.MaxMethod)}, true},
		{&wire.Stream{Method: long(wire.MaxMethod + 1)}, false},
		{&wire.Stream{}, false},
		{&wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: long(wire.MaxText)}, true},
		{&wire.End{Code: wire.Invalid, Text: long(wire.MaxText + 1)}, false},
		{&wire.End{}, false},
		{&wire.End{Code: wire.Code(long(65))}, false},
		{&wire.End{Code: wire.Invalid, Origin: wire.Origin(long(17))}, false},
		{&wire.SessionRef{Session: id, Text: long(wire.MaxText)}, true},
		{&wire.SessionRef{Session: id, Text: long(wire.MaxText + 1)}, false},
		{&wire.SessionRef{}, false},
		{&wire.Error{Code: wire.Conflict}, true},
		{&wire.Error{}, false},
		{&wire.Error{Code: wire.Code(long(65))}, false},
	} {
		if err := test.v.Validate(); (err == nil) != test.ok || err != nil && !errors.Is(err, wire.Malformed) {
			t.Errorf("%d: %T: %v, want it well-formed: %t", i, test.v, err, test.ok)
		}
	}
}

func TestLimitsHaveDefaultsAndRoomForOneMessage(t *testing.T) {
	for _, test := range []struct{ in, want wire.Limits }{
		{wire.Limits{}, wire.DefaultLimits},
		{wire.Limits{Calls: -1, OneWay: math.MinInt64, Bytes: -1}, wire.DefaultLimits},
		{wire.Limits{Calls: 1, OneWay: 2, Bytes: 3}, wire.Limits{Calls: 1, OneWay: 2, Bytes: wire.MaxBody, Files: 64, OneWayBytes: wire.MaxBody}},
		{wire.Limits{Calls: math.MaxInt64, OneWay: 1, Bytes: math.MaxInt64, Files: 1}, wire.Limits{Calls: math.MaxInt64, OneWay: 1, Bytes: math.MaxInt64, Files: wire.MaxFiles, OneWayBytes: 1 << 20}},
	} {
		if got := test.in.OrDefault(); got != test.want {
			t.Errorf("%+v: %+v, want %+v", test.in, got, test.want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	for i, v := range examples() {
		b, _, err := wire.MarshalFiles(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
		f.Add(uint8(i), []byte{0x80})
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		if len(b) > wire.MaxBody {
			return
		}
		i := int(which) % len(messages())
		v := messages()[i]
		before := allocated()
		err := wire.Unmarshal(b, v)
		if n := allocated() - before; n > 4<<20 {
			t.Fatalf("%T: decoding %d bytes allocated %d", v, len(b), n)
		}
		if err != nil {
			if !errors.Is(err, wire.Malformed) {
				t.Fatalf("%T: %v, want %v", v, err, wire.Malformed)
			}
			return
		}
		first, err := wire.Marshal(v)
		if err != nil {
			t.Fatalf("%+v decoded and does not encode: %v", v, err)
		}
		again := messages()[i]
		if err := wire.Unmarshal(first, again); err != nil {
			t.Fatalf("%+v decoded and does not decode again: %v", v, err)
		}
		second, err := wire.Marshal(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%+v became %+v, %v", v, again, err)
		}
	})
}
