package session_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestAStreamIsUsedAsWhatItIs(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"raw":   func(_ context.Context, st *session.Stream) error { st.Write([]byte("x")); return st.CloseWrite() },
		"typed": func(_ context.Context, st *session.Stream) error { st.Send("x"); return st.CloseWrite() },
		"read":  func(_ context.Context, st *session.Stream) error { _, err := io.ReadAll(st); return err },
		"receive": func(_ context.Context, st *session.Stream) error {
			_, err := receiveAll[any](st)
			return err
		},
	}}})
	typed, raw := begin(t, c, "typed", nil), open(t, c, "raw")
	if _, err := io.ReadAll(raw); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"Read": second(typed.Read(make([]byte, 1))), "Write": second(typed.Write([]byte("x"))),
		"Receive": raw.Receive(new(any)), "Send": raw.Send(1),
	} {
		if !errors.Is(err, wire.Invalid) {
			t.Errorf("%s: %v, want %v", name, err, wire.Invalid)
		}
	}
	if got, err := receiveAll[string](typed); err != nil || len(got) != 1 {
		t.Errorf("then: %q, %v", got, err)
	}
	for name, err := range map[string]error{
		"data to a caller":  second(receiveAll[any](begin(t, c, "raw", nil))),
		"an item to a read": second(io.ReadAll(open(t, c, "typed"))),
		"data to a handler": func() error { st := open(t, c, "receive"); st.Write([]byte("x")); return second(io.ReadAll(st)) }(),
		"an item to a raw":  func() error { st := begin(t, c, "read", nil); st.Send("x"); return st.Receive(new(any)) }(),
	} {
		if !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v, want %v", name, err, wire.Malformed)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestMalformedItemsFailTheirStreamAndNothingElse(t *testing.T) {
	header := func(kind wire.Kind, flags uint8, length uint32) []byte {
		return wire.Header{Kind: kind, Flags: flags, Length: length}.Append(nil)
	}
	failed := make(chan error, 1)
	h, s := withHostileServing(t, handler{methods: usual.methods, streams: streams{
		"take": func(_ context.Context, st *session.Stream) error {
			_, err := receiveAll[any](st)
			failed <- err
			return err
		},
	}})
	for name, test := range map[string]struct {
		then []byte
		want wire.Code
	}{
		"data":                   {append(header(wire.KindData, 0, 1), 0xc0), wire.Malformed},
		"an item of nothing":     {header(wire.KindItem, 0, 0), wire.Malformed},
		"an item of two values":  {append(header(wire.KindItem, 0, 2), 0xc0, 0xc0), wire.Malformed},
		"an item that is cut":    {append(header(wire.KindItem, 0, 2), 0xa5, 'x'), wire.Malformed},
		"a bomb":                 {append(header(wire.KindItem, 0, 5), 0xdd, 0xff, 0xff, 0xff, 0xff), wire.Malformed},
		"an item over its limit": {header(wire.KindItem, 0, wire.MaxBody+1), wire.Malformed},
		"unknown flags":          {append(header(wire.KindItem, 0x80, 1), 0xc0), wire.Malformed},
		"a finish of something":  {append(header(wire.KindFinish, 0, 1), 0xc0), wire.Malformed},
		"a reply that is none":   {append(header(wire.KindReply, 0, 1), 0xc0), wire.Malformed},
		"a stream in a stream":   {begins(t, "take"), wire.Malformed},
		"another version":        {append([]byte{9}, header(wire.KindItem, 0, 1)[1:]...), wire.Unsupported},
		"an error": {func() []byte {
			f, _ := wire.NewFrame(wire.KindReply, 0, wire.Error{Code: wire.Conflict})
			f.Flags = wire.FlagError
			return f.Append(nil)
		}(), wire.Conflict},
	} {
		y := h.stream(append(begins(t, "take"), test.then...))
		if err := take(t, "the handler's end", failed); wire.CodeOf(err) != test.want {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		y.Close()
	}
	for name, then := range map[string][]byte{"nothing": nil, "half a header": header(wire.KindItem, 0, 1)[:7], "half an item": append(header(wire.KindItem, 0, 9), 0xa8)} {
		h.stream(append(begins(t, "take"), then...)).Close()
		if err := take(t, "the handler's end", failed); wire.CodeOf(err) != wire.Canceled {
			t.Errorf("%s and then end of file: %v, want %v", name, err, wire.Canceled)
		}
	}
	if end := s.End(); end != (wire.End{}) {
		t.Errorf("the session has ended: %+v", end)
	}
}
