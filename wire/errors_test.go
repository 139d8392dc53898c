package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

func TestErrorsIsHoldsForCodesAndContexts(t *testing.T) {
	all := []wire.Code{
		wire.UnknownEndpoint, wire.NotPermitted, wire.StartFailed, wire.StartTimeout, wire.Suspended, wire.OverQuota, wire.Refused, wire.Hung, wire.Terminating,
		wire.Interrupted, wire.Invalid, wire.UnknownMethod, wire.Malformed, wire.DeadlineExceeded, wire.Canceled, wire.NotFound, wire.Conflict,
		wire.Exhausted, wire.Unavailable, wire.Unsupported, wire.Internal,
	}
	for _, code := range all {
		err := fmt.Errorf("do it: %w", &wire.Error{Code: code, Text: "oh"})
		for _, other := range all {
			if got := errors.Is(err, other); got != (code == other) {
				t.Errorf("errors.Is(%s, %s) is %t", code, other, got)
			}
		}
		if got, want := errors.Is(err, context.DeadlineExceeded), code == wire.DeadlineExceeded; got != want {
			t.Errorf("errors.Is(%s, context.DeadlineExceeded) is %t", code, got)
		}
		if got, want := errors.Is(err, context.Canceled), code == wire.Canceled; got != want {
			t.Errorf("errors.Is(%s, context.Canceled) is %t", code, got)
		}
		if wire.CodeOf(err) != code || wire.CodeOf(code) != code || wire.CodeOf(fmt.Errorf("so: %w", code)) != code {
			t.Errorf("CodeOf(%v) is %s", err, wire.CodeOf(err))
		}
	}
}

func TestAsErrorKeepsWhatTheErrorSays(t *testing.T) {
	var none *wire.Error
	inner := &wire.Error{Code: wire.Conflict, Text: "web is taken", Origin: wire.Peer, Holder: &wire.Holder{PID: 42}, Retry: 5, Sent: true}
	for _, test := range []struct {
		name string
		err  error
		want wire.Error
	}{
		{"itself", inner, *inner},
		{"wrapped", fmt.Errorf("allocate: %w", inner), wire.Error{Code: wire.Conflict, Text: "allocate: web is taken", Origin: wire.Peer, Holder: inner.Holder, Retry: 5, Sent: true}},
		{"joined", errors.Join(io.EOF, inner), wire.Error{Code: wire.Conflict, Text: "EOF\nweb is taken", Origin: wire.Peer, Holder: inner.Holder, Retry: 5, Sent: true}},
		{"a code", wire.NotFound, wire.Error{Code: wire.NotFound, Text: "not_found", Origin: wire.Local}},
		{"a deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), wire.Error{Code: wire.DeadlineExceeded, Text: "wait: context deadline exceeded", Origin: wire.Local}},
		{"a cancel", context.Canceled, wire.Error{Code: wire.Canceled, Text: "context canceled", Origin: wire.Local}},
		{"anything else", io.ErrNoProgress, wire.Error{Code: wire.Internal, Text: io.ErrNoProgress.Error(), Origin: wire.Local}},
		{"a nil pointer", none, wire.Error{Code: wire.Internal, Text: "an error that is a nil pointer", Origin: wire.Local}},
	} {
		if got := wire.AsError(test.err); *got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, *got, test.want)
		}
	}
	if wire.AsError(nil) != nil || wire.CodeOf(nil) != "" {
		t.Error("nil is an error")
	}
	if inner.Text != "web is taken" {
		t.Errorf("the inner error became %q", inner.Text)
	}
}

func TestAnErrorSaysItsCodeOnce(t *testing.T) {
	err := error(wire.Errorf(wire.Conflict, "hostname %q is taken", "web"))
	for range 3 {
		err = wire.AsError(fmt.Errorf("more: %w", err))
	}
	if got, want := err.Error(), `more: more: more: hostname "web" is taken (conflict)`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for want, err := range map[string]error{
		"conflict":                      &wire.Error{Code: wire.Conflict},
		"not_found":                     wire.AsError(wire.NotFound),
		"look up web: not_found":        wire.AsError(fmt.Errorf("look up web: %w", wire.NotFound)),
		"again: look up web: not_found": wire.AsError(fmt.Errorf("again: %w", wire.AsError(fmt.Errorf("look up web: %w", wire.NotFound)))),
		"it is not_found (not_found)":   wire.Errorf(wire.NotFound, "it is not_found"),
	} {
		if got := err.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSentDoesNotTravel(t *testing.T) {
	b, err := wire.Marshal(&wire.Error{Code: wire.Internal, Sent: true})
	if err != nil {
		t.Fatal(err)
	}
	var e wire.Error
	if err := wire.Unmarshal(b, &e); err != nil || e.Sent {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestAnEndIsAnErrorWithItsCode(t *testing.T) {
	err := wire.End{Code: wire.Interrupted, Origin: wire.Peer, Text: "the peer is gone"}.Err()
	if !errors.Is(err, wire.Interrupted) || !strings.Contains(err.Error(), "the peer is gone") || wire.AsError(err).Origin != wire.Peer {
		t.Errorf("%v", err)
	}
}
