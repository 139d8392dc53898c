package wire_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

var update = flag.Bool("update", false, "write testdata/vectors anew")

// reader returns a source of frames that asks for exactly what a frame says, and what is left of b.
func reader(b []byte) (next wire.ReadAhead, left func() int) {
	r := bytes.NewReader(b)
	return func(n int) ([]byte, error) {
		p := make([]byte, n)
		_, err := io.ReadFull(r, p)
		return p, err
	}, r.Len
}

func TestAHeaderIsCheckedBeforeAnythingIsRead(t *testing.T) {
	good := wire.Header{Kind: wire.KindRequest, ID: 7, Length: 3}
	change := func(f func(h *wire.Header)) []byte {
		h := good
		f(&h)
		return h.Append(nil)
	}
	for name, test := range map[string]struct {
		b    []byte
		want error
	}{
		"good":                        {good.Append(nil), nil},
		"followed by anything":        {append(good.Append(nil), 1, 2, 3), nil},
		"empty":                       {nil, wire.Malformed},
		"a byte short":                {good.Append(nil)[:11], wire.Malformed},
		"version 0, as yamux has":     {append([]byte{0}, good.Append(nil)[1:]...), wire.Unsupported},
		"version 2":                   {append([]byte{2}, good.Append(nil)[1:]...), wire.Unsupported},
		"kind 0":                      {change(func(h *wire.Header) { h.Kind = 0 }), wire.Malformed},
		"kind 255":                    {change(func(h *wire.Header) { h.Kind = 255 }), wire.Malformed},
		"all flags":                   {change(func(h *wire.Header) { h.Flags = wire.FlagError | wire.FlagLarge | wire.FlagReply }), nil},
		"an unknown flag":             {change(func(h *wire.Header) { h.Flags = 1 << 3 }), wire.Malformed},
		"most descriptors":            {change(func(h *wire.Header) { h.Files = wire.MaxFiles }), nil},
		"a descriptor more":           {change(func(h *wire.Header) { h.Files = wire.MaxFiles + 1 }), wire.Malformed},
		"longest body":                {change(func(h *wire.Header) { h.Length = wire.MaxBody }), nil},
		"a byte more":                 {change(func(h *wire.Header) { h.Length = wire.MaxBody + 1 }), wire.Malformed},
		"4 GiB":                       {change(func(h *wire.Header) { h.Length = 1<<32 - 1 }), wire.Malformed},
		"longest large body":          {change(func(h *wire.Header) { h.Kind, h.Length = wire.KindLarge, wire.MaxLarge }), nil},
		"a large body of a byte more": {change(func(h *wire.Header) { h.Kind, h.Length = wire.KindLarge, wire.MaxLarge+1 }), wire.Malformed},
	} {
		_, err := wire.ParseHeader(test.b)
		if test.want == nil && err != nil || !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func TestEveryKindHasAName(t *testing.T) {
	seen := map[string]bool{}
	for k := range 256 {
		name := wire.Kind(k).String()
		_, err := wire.ParseHeader(wire.Header{Kind: wire.Kind(k)}.Append(nil))
		if known := err == nil; known == (name == fmt.Sprintf("kind %d", k)) || seen[name] {
			t.Errorf("kind %d is %q, and known: %t", k, name, known)
		}
		seen[name] = true
	}
}

func TestAFrameIsReadWholeAndNotAByteMore(t *testing.T) {
	f, err := wire.NewFrame(wire.KindRequest, 7, wire.Request{Method: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	b := f.Append(nil)
	next, left := reader(append(bytes.Clone(b), "what follows"...))
	got, err := wire.ReadFrame(next)
	if err != nil || !reflect.DeepEqual(got, f) || left() != len("what follows") {
		t.Errorf("%+v, %v, %d bytes left", got, err, left())
	}
	for n := range b {
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		next, _ := reader(b[:n])
		if _, err := wire.ReadFrame(next); err != want {
			t.Errorf("cut after %d of %d bytes: %v, want %v", n, len(b), err, want)
		}
	}
}

func TestAFrameIsNeverLongerThanItsPeerTakes(t *testing.T) {
	for size, ok := range map[int]bool{wire.MaxBody - 3: true, wire.MaxBody - 2: false} { // a text of that length has a header of 3 bytes
		f, err := wire.NewFrame(wire.KindReply, 1, strings.Repeat("x", size))
		if (err == nil) != ok || err != nil && !errors.Is(err, wire.OverQuota) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := wire.ParseHeader(f.Header.Append(nil)); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if f, err := wire.NewFrame(wire.KindCancel, 1, nil); err != nil || len(f.Append(nil)) != wire.HeaderSize {
		t.Errorf("no body: %+v, %v", f, err)
	}
}

// A vector is a frame as its bytes are on the wire.
type vector struct {
	name, meaning string
	frame         wire.Frame
	value, fresh  any
}

func vectors(t *testing.T) (list []vector) {
	add := func(name, meaning string, kind wire.Kind, id uint32, flags uint8, files uint8, value any) {
		f, err := wire.NewFrame(kind, id, value)
		if err != nil {
			t.Fatal(err)
		}
		f.Flags, f.Files = flags, files
		v := vector{name: name, meaning: meaning, frame: f, value: value}
		if value != nil {
			v.fresh = reflect.New(reflect.TypeOf(value).Elem()).Interface()
		}
		list = append(list, v)
	}
	text := "hi"
	e := examples()
	add("open", "a client asks for com.example.echo within 2 s", wire.KindOpen, 0, 0, 0, e[0])
	add("routed", "the client is told its session; the instance's pidfd is attached", wire.KindRouted, 0, 0, 1, e[1])
	add("accepted", "the instance takes the session and states its limits", wire.KindAccepted, 0, 0, 0, e[2])
	add("refused", "an open fails with a conflict and its holder", wire.KindRefused, 0, 0, 0, e[3])
	add("register", "an instance serves com.example.echo and has a session that ended", wire.KindRegister, 0, 0, 0, e[4])
	add("request", "call 7 of echo with the value hi and 2 s left", wire.KindRequest, 7, 0, 0, e[7])
	add("request-large", "call 8 whose value of 100,000 bytes comes on a stream", wire.KindRequest, 8, wire.FlagLarge, 0, &wire.Request{Method: "echo", Length: 100_000})
	add("reply", "the reply to call 7", wire.KindReply, 7, 0, 0, &text)
	add("reply-error", "call 7 fails", wire.KindReply, 7, wire.FlagError, 0, e[3])
	add("reply-large", "the reply to call 8 comes on a stream", wire.KindReply, 8, wire.FlagLarge, 0, nil)
	add("cancel", "nobody waits for call 7 any more", wire.KindCancel, 7, 0, 0, nil)
	add("request-descriptors", "call 9 of copy, whose value names both its descriptors", wire.KindRequest, 9, 0, 2, &wire.Request{Method: "copy", Value: named(t)})
	plain := *examples()[6].(*wire.HandOver)
	plain.Features, plain.Routed = []string{wire.FeatureLane}, nil
	add("one-way", "a hand-over with the client's socket attached", wire.KindOneWay, 0, 0, 1, &wire.Request{Method: wire.MethodHandOver, Value: marshal(t, &plain)})
	add("notice-terminating", "the sender takes no more requests", wire.KindNotice, 0, 0, 0, &wire.Notice{Name: wire.NoticeTerminating})
	add("notice-handled", "credit for 64 one-way messages of 1,000 bytes comes back", wire.KindNotice, 0, 0, 0, &wire.Notice{Name: wire.NoticeHandled, Handled: 64, Bytes: 1000})
	add("notice-facts", "the sender's facts", wire.KindNotice, 0, 0, 0, &wire.Notice{Name: wire.NoticeFacts, Facts: map[string]string{"container": "web"}})
	add("end", "the sender ends the session", wire.KindEnd, 0, 0, 0, e[10])
	add("flush", "the sender asks, as 10, to be told when all it sent has been taken up", wire.KindFlush, 10, 0, 0, nil)
	add("stream", "a streaming call of follow begins, with the value hi and 2 s left", wire.KindStream, 0, 0, 0, e[9])
	add("data", "bytes of a raw stream, here those of the text hi", wire.KindData, 0, 0, 0, &text)
	add("item", "a value of a streaming call, here the text hi", wire.KindItem, 0, 0, 0, &text)
	add("finish", "the writer of a raw stream or a streaming call has written all", wire.KindFinish, 0, 0, 0, nil)
	add("large", "the value of call 8", wire.KindLarge, 8, 0, 0, &text)
	add("large-reply", "the value of the reply to call 8", wire.KindLarge, 8, wire.FlagReply, 0, &text)
	add("open-relay", "a client leaves it to the instance to say routed", wire.KindOpen, 0, 0, 0, &wire.Open{Endpoint: "com.example.echo", Features: []string{wire.FeatureLane, wire.FeatureRelay}, Limits: wire.DefaultLimits})
	add("one-way-relay", "its hand-over, to an instance that does", wire.KindOneWay, 0, 0, 1, &wire.Request{Method: wire.MethodHandOver, Value: marshal(t, examples()[6])})
	return list
}

// named returns a value with two descriptors.
func named(t *testing.T) []byte {
	return marshal(t, struct {
		From *os.File `msgpack:"from"`
		To   *os.File `msgpack:"to"`
	}{os.Stdin, os.Stdout})
}

// marshal returns the bytes of a value; its descriptors travel beside them.
func marshal(t *testing.T, v any) []byte {
	b, _, err := wire.MarshalFiles(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The vectors are the protocol: a change of these bytes is a change that older peers do not understand.
func TestTheBytesOnTheWireAreThoseOfTheVectors(t *testing.T) {
	path := filepath.Join("testdata", "vectors")
	list := vectors(t)
	if *update {
		b := []byte("# name: what it means\n# header and body in hexadecimal\n")
		for _, v := range list {
			f := v.frame.Append(nil)
			b = fmt.Appendf(b, "\n%s: %s\n%x %x\n", v.name, v.meaning, f[:wire.HeaderSize], f[wire.HeaderSize:])
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var written [][2]string // name and bytes
	for entry := range strings.SplitSeq(string(text), "\n\n") {
		if lines := strings.Split(strings.TrimSpace(entry), "\n"); !strings.HasPrefix(lines[0], "#") {
			name, _, _ := strings.Cut(lines[0], ":")
			written = append(written, [2]string{name, lines[1]})
		}
	}
	if len(written) != len(list) {
		t.Fatalf("%d vectors are written down, %d are known", len(written), len(list))
	}
	for i, v := range list {
		b := decodeHex(t, written[i][1])
		if got := v.frame.Append(nil); written[i][0] != v.name || !bytes.Equal(got, b) {
			t.Errorf("%s is\n%x, want\n%x", v.name, got, b)
		}
		next, left := reader(b)
		f, err := wire.ReadFrame(next)
		if v.frame.Kind == wire.KindLarge { // it is never read whole with others
			if !errors.Is(err, wire.Malformed) || left() != len(b)-wire.HeaderSize {
				t.Errorf("%s: %v, %d bytes left, want it refused after its header", v.name, err, left())
			}
			f, err = v.frame, nil
			f.Header, err = wire.ParseHeader(b)
			next(len(b) - wire.HeaderSize)
		}
		if err != nil || f.Header != v.frame.Header || left() != 0 {
			t.Errorf("%s: %+v, %v, %d bytes left", v.name, f.Header, err, left())
		}
		if v.fresh == nil {
			continue
		}
		if err := wire.Unmarshal(f.Body, v.fresh); err != nil || !reflect.DeepEqual(v.fresh, v.value) {
			t.Errorf("%s: %+v, %v, want %+v", v.name, v.fresh, err, v.value)
		}
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(wire.Header{Kind: wire.KindRequest, ID: 7, Length: 3}.Append(nil))
	f.Add(wire.Header{Kind: wire.KindLarge, Flags: wire.FlagReply, Files: 16, Length: wire.MaxLarge}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := wire.ParseHeader(b)
		if err != nil {
			if !errors.Is(err, wire.Malformed) && !errors.Is(err, wire.Unsupported) {
				t.Fatalf("%x: %v", b, err)
			}
			return
		}
		if got := h.Append(nil); !bytes.Equal(got, b[:wire.HeaderSize]) {
			t.Fatalf("%x became %x", b, got)
		}
		if h.Files > wire.MaxFiles || h.Length > wire.MaxLarge || h.Length > wire.MaxBody && h.Kind != wire.KindLarge {
			t.Fatalf("%+v", h)
		}
	})
}
