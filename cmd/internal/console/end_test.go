package console_test

import (
	"testing"

	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAnEndIsSaidInWordsAndWithItsCodeWhereItIsAFault(t *testing.T) {
	for _, test := range []struct {
		code   wire.Code
		origin wire.Origin
		text   string
		want   string
	}{
		{wire.Invalid, wire.Peer, "closed", "closed by the client"},
		{wire.Invalid, wire.Peer, "enough of it", "closed by the client: enough of it"},
		{wire.Invalid, wire.Peer, "c", "closed by the client: c"},
		{wire.Invalid, wire.Peer, "the peer is gone", "the client is gone"},
		{wire.Invalid, wire.Peer, "the peer is gone: connection reset by peer", "the client is gone: connection reset by peer"},
		{wire.Invalid, wire.Peer, "the client has exited", "the client has exited"},
		{wire.Invalid, wire.Peer, "the client was closed by an operator", "closed by the client: the client was closed by an operator"},
		{wire.Invalid, wire.Peer, "the peer is gone and forgotten", "closed by the client: the peer is gone and forgotten"},
		{wire.Invalid, wire.Local, "closed", "closed by the instance"},
		{wire.Invalid, wire.Local, "", "closed by the instance"},
		{wire.Terminating, wire.Local, "the service is being stopped", "ended by the instance: the service is being stopped"},
		{wire.Interrupted, wire.Broker, "closed by an operator", "closed by an operator"},
		{wire.Interrupted, wire.Broker, "maintenance", "closed by an operator: maintenance"},
		{wire.Interrupted, wire.Local, "e (instance 1, pid 2) is gone: signal: killed", "e (instance 1, pid 2) is gone: signal: killed (interrupted)"},
		{wire.Hung, wire.Broker, "it does not answer", "it does not answer (hung)"},
		{wire.Unavailable, wire.Broker, "no instance has taken it", "no instance has taken it (unavailable)"},
		{wire.Malformed, wire.Local, "read a frame", "ended by the instance: read a frame (malformed)"},
		{wire.Malformed, wire.Peer, "read a frame", "ended by the client: read a frame (malformed)"},
		{wire.Internal, "of_a_later_version", "what", "what (internal)"},
	} {
		if got := console.End(&wire.End{Code: test.code, Origin: test.origin, Text: test.text}); got != test.want {
			t.Errorf("%s by %s, %q, is said as %q, want %q", test.code, test.origin, test.text, got, test.want)
		}
	}
	if got := console.End(nil); got != "" {
		t.Errorf("of a session that is open is said %q", got)
	}
}
