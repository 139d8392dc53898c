package session

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// maxTraced is how much of a frame's body is printed, in bytes.
const maxTraced = 512

// traceTime is how the time of a frame is printed.
const traceTime = "15:04:05.000000"

// tracing says whether the frames of sessions are printed: FAIRLEAD_TRACE=1 in the environment.
var tracing = os.Getenv("FAIRLEAD_TRACE") == "1"

// The directions of a frame that is traced.
const (
	sentFrame     = '>'
	receivedFrame = '<'
)

// flagNames are the names of the flags, from the lowest bit.
var flagNames = [...]string{"error", "large", "reply"}

// traceBegin says whose frames follow.
func (s *Session) traceBegin() {
	if !tracing {
		return
	}
	side, channel := "instance", wire.ChannelStream
	if s.conf.Opener {
		side = "client"
	}
	if s.conf.Lane {
		channel = wire.ChannelLane
	}
	fmt.Fprintf(os.Stderr, "%s %s = %s, %s, the other side is process %d, messages on the %s\n", time.Now().Format(traceTime), s.traceID(),
		wire.Printable(s.conf.Endpoint, wire.MaxEndpoint), side, s.conf.Peer.PID, channel)
}

func (s *Session) traceID() string { return cmp.Or(ShortID(s.conf.ID), "control") }

// trace prints a frame to stderr: the time, the session, whether it was sent or received, on which stream (0: the message channel), what its header
// says, and the beginning of its body.
func (s *Session) trace(direction rune, stream uint32, f wire.Frame) {
	if !tracing {
		return
	}
	line := fmt.Appendf(nil, "%s %s %c", time.Now().Format(traceTime), s.traceID(), direction)
	if stream != 0 {
		line = fmt.Appendf(line, " stream %d", stream)
	}
	line = fmt.Appendf(line, " %v", f.Kind)
	for _, part := range []struct {
		name  string
		value uint32
	}{{"id", f.ID}, {"files", uint32(f.Files)}, {"length", f.Length}} {
		if part.value != 0 {
			line = fmt.Appendf(line, " %s %d", part.name, part.value)
		}
	}
	for flag, name := range flagNames {
		if f.Flags&(1<<flag) != 0 {
			line = fmt.Appendf(line, " %s", name)
		}
	}
	switch {
	case len(f.Body) == 0:
	case f.Kind == wire.KindData:
		line = fmt.Appendf(line, " %q", f.Body[:min(len(f.Body), maxTraced)])
	default:
		line = fmt.Appendf(line, " %s", wire.Text(f.Body, maxTraced))
	}
	os.Stderr.Write(append(line, '\n')) // at once, so that lines of sessions do not mix
}
