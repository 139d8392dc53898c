package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Code is what a caller can act on. The set is closed. A Code is itself an error, so that errors.Is(err, wire.Conflict) holds for
// every Error with that code, on both sides of a session.
type Code string

// The codes.
const (
	UnknownEndpoint  Code = "unknown_endpoint"  // no service has this endpoint
	NotPermitted     Code = "not_permitted"     // the policy forbids it
	StartFailed      Code = "start_failed"      // the service was started and ended before it registered
	StartTimeout     Code = "start_timeout"     // the service was started and did not register in time
	Suspended        Code = "suspended"         // the service fails too often and is not started for a time
	OverQuota        Code = "over_quota"        // a limit is reached
	Refused          Code = "refused"           // the service refused the session
	Hung             Code = "hung"              // it is alive and does not answer whether it is there
	Terminating      Code = "terminating"       // the service is being stopped
	Interrupted      Code = "interrupted"       // the service's side was lost; opening again may work
	Invalid          Code = "invalid"           // this session will never work again
	UnknownMethod    Code = "unknown_method"    // the endpoint has no such method
	Malformed        Code = "malformed"         // bad input
	DeadlineExceeded Code = "deadline_exceeded" // the call's time is over
	Canceled         Code = "canceled"          // the caller no longer wants it
	NotFound         Code = "not_found"         // what was named is not there
	Conflict         Code = "conflict"          // somebody else has it
	Exhausted        Code = "exhausted"         // nothing is left to give
	Unavailable      Code = "unavailable"       // it cannot be had now; later it may
	Unsupported      Code = "unsupported"       // this side cannot do that
	Internal         Code = "internal"          // a fault in whoever answers
)

// Error returns the code itself.
func (c Code) Error() string { return string(c) }

// An Origin says where an error or an end arose: it is Local, Peer or Broker, seen from the side that is told, and empty where nobody has said.
type Origin string

// The origins. A broker lists ends as its instances saw them.
const (
	Local  Origin = "local"  // this side
	Peer   Origin = "peer"   // the other side of the session
	Broker Origin = "broker" // the broker, or an operator through it
)

// A Holder says who has what somebody else asked for.
type Holder struct {
	PID     int    `msgpack:"p,omitempty" json:"pid"`
	UID     uint32 `msgpack:"u,omitempty" json:"uid"`
	Service string `msgpack:"s,omitempty" json:"service,omitempty"`
	Lease   string `msgpack:"l,omitempty" json:"lease,omitempty"`
}

// An Error is a code, a text for people, and where it arose.
type Error struct {
	Code   Code          `msgpack:"c"`
	Text   string        `msgpack:"t,omitempty"` // for people; nothing decides on it
	Origin Origin        `msgpack:"o,omitempty"`
	Holder *Holder       `msgpack:"h,omitempty"` // who has it, for a conflict
	Retry  time.Duration `msgpack:"r,omitempty"` // when to try again, in nanoseconds; 0: unknown
	// Sent is set on a failed call whose request had left: repeating it may do the work twice. It does not travel.
	Sent bool `msgpack:"-"`
}

// Errorf makes an Error of this side with the given code and text.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...), Origin: Local}
}

// Error returns the text and the code. A text that ends with the code, as that of a bare Code that was wrapped, says it already.
func (e *Error) Error() string {
	if e.Text == "" {
		return string(e.Code)
	}
	if strings.HasSuffix(": "+e.Text, ": "+string(e.Code)) {
		return e.Text
	}
	return e.Text + " (" + string(e.Code) + ")"
}

// Is reports whether target is the error's code, or the context's error that the code stands for.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Code == DeadlineExceeded
	case context.Canceled:
		return e.Code == Canceled
	}
	code, ok := target.(Code)
	return ok && e.Code == code
}

// Validate checks an Error that was received.
func (e *Error) Validate() error {
	if e.Code == "" || len(e.Code) > 64 || len(e.Text) > MaxBody {
		return Errorf(Malformed, "decode an error: code of %d bytes", len(e.Code))
	}
	return nil
}

// DecodeError decodes an Error that was received. It fails with Malformed.
func DecodeError(b []byte) (*Error, error) {
	e := &Error{}
	if err := Unmarshal(b, e); err != nil {
		return nil, err
	}
	return e, nil
}

// Bounded returns the error as it may travel: with a code, and a text of at most MaxText bytes.
func (e *Error) Bounded() *Error {
	b := *e
	b.Text = Cut(b.Text, MaxText)
	if b.Validate() != nil {
		b.Code = Internal // what somebody made up would be malformed to the peer
	}
	return &b
}

// CodeOf returns the code of err: that of the Error in its chain, the one that stands for a context's error, or Internal.
// It returns the empty code for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}

// AsError returns the Error in err's chain, with the whole chain's text, or makes one: DeadlineExceeded and Canceled for a context's errors, a bare
// Code for itself, Internal for anything else. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e == nil {
		return &Error{Code: Internal, Text: "an error that is a nil pointer", Origin: Local}
	} else if ok {
		if error(e) == err {
			return e
		}
		whole := *e
		whole.Text = strings.TrimSuffix(err.Error(), " ("+string(e.Code)+")") // Error says it once
		return &whole
	}
	code, _ := errors.AsType[Code](err)
	switch {
	case code != "":
	case errors.Is(err, context.DeadlineExceeded):
		code = DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = Canceled
	}
	return &Error{Code: cmp.Or(code, Internal), Text: err.Error(), Origin: Local}
}
