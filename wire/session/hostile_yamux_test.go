package session_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// frame returns a frame of yamux.
func frame(kind byte, flags uint16, id, length uint32, body ...byte) []byte {
	b := []byte{0, kind}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, length)
	return append(b, body...)
}

func TestAPeerThatBreaksYamuxIsEndedWithTheReason(t *testing.T) {
	const data, window, ping, goAway, syn, ack, rst = 0, 1, 2, 3, 1, 2, 8
	begin := frame(window, syn, 1, 0)
	for name, test := range map[string]struct {
		want wire.Code
		sent []byte
		wait bool // for what the service does, before the peer goes
	}{
		"garbage":                        {wire.Unsupported, []byte("GET / HTTP/1.1\r\n\r\n"), true},
		"frames without yamux":           {wire.Unsupported, header(wire.Header{Kind: wire.KindRequest, ID: 1}), true},
		"an unknown type":                {wire.Malformed, frame(4, 0, 0, 0), true},
		"a stream twice":                 {wire.Malformed, append(bytes.Clone(begin), begin...), true},
		"more than a window at once":     {wire.Malformed, append(bytes.Clone(begin), frame(data, 0, 1, 384<<10+1)...), true},
		"more than a window":             {wire.Malformed, append(bytes.Clone(begin), bytes.Repeat(frame(data, syn, 3, 256<<10, make([]byte, 256<<10)...), 2)...), true},
		"10,000 frames of no stream":     {wire.OverQuota, bytes.Repeat(frame(window, 0, 99, 0), 10_000), true},                             // guard: guard.idles
		"10,000 frames that say nothing": {wire.OverQuota, append(bytes.Clone(begin), bytes.Repeat(frame(data, 0, 1, 0), 10_000)...), true}, // guard: guard.idles
		"10,000 answers to no ping":      {wire.OverQuota, bytes.Repeat(frame(ping, ack, 0, 1), 10_000), true},                              // guard: guard.idles
		"10,000 farewells":               {wire.OverQuota, bytes.Repeat(frame(goAway, 0, 0, 0), 10_000), true},                              // guard: guard.idles
		"a reset of its channel":         {wire.Invalid, append(bytes.Clone(begin), frame(window, rst, 1, 0)...), true},
		"an error in its farewell":       {wire.Invalid, frame(goAway, 0, 0, 1), true},
		"half a header":                  {wire.Invalid, begin[:5], false},
		"half of its data":               {wire.Invalid, append(bytes.Clone(begin), frame(data, 0, 1, 100, 1, 2, 3)...), false},
		"nothing":                        {wire.Invalid, nil, false},
		"a channel and nothing else":     {wire.Invalid, begin, false},
		"a ping reply to nothing":        {wire.Invalid, frame(ping, 2, 0, 7), false},
		"data for no stream":             {wire.Invalid, frame(data, 0, 9, 3, 1, 2, 3), false},
		"a farewell":                     {wire.Invalid, frame(goAway, 0, 0, 0), false},
		"a window that flows over":       {wire.Invalid, append(bytes.Clone(begin), frame(window, 0, 1, 1<<32-1)...), false},
		"a stream that begins and ends":  {wire.Invalid, append(bytes.Clone(begin), frame(window, 4, 1, 0)...), true},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual})
			if err != nil {
				t.Fatal(err)
			}
			defer closes(t, s)
			defer a.Close()
			go io.Copy(io.Discard, a)
			a.SetWriteDeadline(time.Now().Add(10 * time.Second))
			a.Write(test.sent)
			if !test.wait {
				a.CloseWrite()
			}
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != test.want {
				t.Errorf("end %+v, want %v", end, test.want)
			}
		})
	}
}

// guard: yamuxFrame.pong. yamux itself starts a goroutine for each ping.
func TestPingsAreAnsweredAndStartNothing(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, s)
	defer a.Close()
	const pings = 100_000
	before, most := runtime.NumGoroutine(), 0
	go func() {
		for i := range uint32(pings) {
			a.Write(frame(2, 1, 0, i))
		}
	}()
	answers := bufio.NewReader(a)
	a.SetReadDeadline(time.Now().Add(time.Minute))
	for i := range uint32(pings) {
		var got [12]byte
		if _, err := io.ReadFull(answers, got[:]); err != nil || !bytes.Equal(got[:], frame(2, 2, 0, i)) {
			t.Fatalf("ping %d: %x, %v, end %+v", i, got, err, s.End())
		}
		if i%1000 == 0 {
			most = max(most, runtime.NumGoroutine())
		}
	}
	if most > before+8 {
		t.Errorf("%d goroutines while pings were answered, before %d", most, before)
	}
}

// guard: queueBound. Without it the memory of the session is full at last, which the end then says.
func TestAPeerThatReadsNoAnswersToItsPingsIsEnded(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, s)
	defer a.Close()
	a.SetWriteDeadline(time.Now().Add(time.Minute))
	for all := bytes.Repeat(frame(2, 1, 0, 1), 1000); ; {
		if _, err := a.Write(all); err != nil {
			break
		}
	}
	wait(t, "the end", s.Done())
	if end := s.End(); end.Code != wire.OverQuota || !strings.Contains(end.Text, "has not read") {
		t.Errorf("end %+v, want %v and what is not read", end, wire.OverQuota)
	}
}
