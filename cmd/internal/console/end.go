package console

import (
	"strings"

	"github.com/fairlead-dev/fairlead/wire"
)

// End says for people how a session has ended; nothing of one that is open. The end is as its instance saw it, or its broker where the instance is gone. One that
// is a fault has its code behind it, as errors have.
func End(e *wire.End) string {
	switch {
	case e == nil:
		return ""
	case e.Code == wire.Invalid && e.Origin == wire.Peer:
		return left(e.Text)
	case e.Code == wire.Invalid && e.Origin == wire.Local:
		return by("closed by the instance", e.Text)
	case e.Code == wire.Terminating && e.Origin == wire.Local:
		return by("ended by the instance", e.Text)
	case e.Code == wire.Interrupted && e.Origin == wire.Broker:
		return by("closed by an operator", e.Text)
	}
	text := e.Text
	switch {
	case e.Origin == wire.Peer:
		text = by("ended by the client", text)
	case e.Origin == wire.Local && e.Code != wire.Interrupted: // which an instance is told by its loss, and says of no session of its own
		text = by("ended by the instance", text)
	}
	return (&wire.Error{Code: e.Code, Text: text}).Error()
}

// left says how a client has left a session: it closed it, for a reason of its own, or it is gone, as its instance says by these texts alone.
func left(text string) string {
	rest, gone := strings.CutPrefix(text, "the peer is gone")
	switch {
	case gone && (rest == "" || strings.HasPrefix(rest, ": ")):
		return "the client is gone" + rest
	case text == "the client has exited":
		return text
	}
	return by("closed by the client", text)
}

// by says who ended a session, and why if the text says more than that.
func by(who, text string) string {
	if text == "" || text == "closed" || text == who { // as Close and an operator say who give no reason
		return who
	}
	return who + ": " + text
}
