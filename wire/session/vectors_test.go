package session_test

import (
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A vector is frames that come on a message channel, and what becomes of them.
type vector struct {
	name, outcome string
	bytes         []byte
}

// vectors reads the file of vectors of sessions.
func vectors(t *testing.T) (list []vector) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", "session"))
	if err != nil {
		t.Fatal(err)
	}
	for entry := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		head, rest, _ := strings.Cut(entry, "\n")
		if strings.HasPrefix(head, "#") {
			continue
		}
		parts := strings.SplitN(head, ": ", 3)
		b, err := hex.DecodeString(strings.Join(strings.Fields(rest), ""))
		if err != nil || len(parts) != 3 {
			t.Fatalf("vector %q: %v", head, err)
		}
		list = append(list, vector{name: parts[0], outcome: parts[1], bytes: b})
	}
	return list
}

// entries are the ways into a session: each returns its message channel, as a peer that knows bytes alone has it.
var entries = map[string]func(t *testing.T, peer, conn *net.UnixConn, c session.Config) (*session.Session, io.ReadWriter){
	"lane": func(t *testing.T, peer, conn *net.UnixConn, c session.Config) (*session.Session, io.ReadWriter) {
		c.Lane = true
		s, err := session.New(conn, c)
		if err != nil {
			t.Fatal(err)
		}
		return s, peer
	},
	"stream": func(t *testing.T, peer, conn *net.UnixConn, c session.Config) (*session.Session, io.ReadWriter) {
		s, err := session.New(conn, c)
		if err != nil {
			t.Fatal(err)
		}
		mux, err := yamux.Client(peer, plainYamux())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mux.Close() })
		stream, err := mux.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		return s, stream
	},
	"control": func(_ *testing.T, peer, conn *net.UnixConn, c session.Config) (*session.Session, io.ReadWriter) {
		return session.NewControl(conn, c), peer
	},
}

func TestEveryVectorHasItsOutcomeAtEveryEntry(t *testing.T) {
	for name, enter := range entries {
		for _, v := range vectors(t) {
			t.Run(name+"/"+v.name, func(t *testing.T) {
				leavesNothing(t)
				peer, conn := sockets(t)
				s, channel := enter(t, peer, conn, session.Config{Endpoint: endpoint, Handler: handler{methods: methods{"echo": echo}}})
				t.Cleanup(func() { peer.Close(); closes(t, s) })
				peer.SetReadDeadline(time.Now().Add(20 * time.Second))
				if _, err := channel.Write(v.bytes); err != nil {
					t.Fatal(err)
				}
				outcome, code, _ := strings.Cut(v.outcome, " ")
				switch outcome {
				case "fatal":
					wantEnd(t, s, wire.Code(code))
				case "end":
					wantEnd(t, s, wire.Invalid)
				case "reply", "answered":
					wantReply(t, channel, 7, wire.Code(code))
				case "ignored":
					probe, _ := wire.NewFrame(wire.KindRequest, 1000, wire.Request{Method: "echo", Value: wire.Raw{0xa2, 'h', 'i'}})
					channel.Write(probe.Append(nil))
					wantReply(t, channel, 1000, "")
				default:
					t.Fatalf("unknown outcome %q", v.outcome)
				}
			})
		}
	}
}

func wantEnd(t *testing.T, s *session.Session, code wire.Code) {
	t.Helper()
	wait(t, "the end", s.Done())
	if end := s.End(); end.Code != code {
		t.Errorf("%+v, want %s", end, code)
	}
}

// wantReply reads frames up to the reply of an id, and compares its code; "" is a value.
func wantReply(t *testing.T, channel io.Reader, id uint32, code wire.Code) {
	t.Helper()
	for {
		f, err := wire.ReadFrame(func(n int) ([]byte, error) {
			b := make([]byte, n)
			_, err := io.ReadFull(channel, b)
			return b, err
		})
		switch {
		case err != nil:
			t.Fatal(err)
		case f.Kind != wire.KindReply:
			continue
		case f.ID != id || (code != "") != (f.Flags&wire.FlagError != 0):
			t.Fatalf("reply %+v, want %d with code %q", f, id, code)
		}
		if code != "" {
			if e, err := wire.DecodeError(f.Body); err != nil || e.Code != code {
				t.Errorf("%v, %v, want %s", e, err, code)
			}
		}
		return
	}
}
