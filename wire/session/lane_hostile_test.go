package session_test

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A sent part of what a hostile peer sends. The session has read it before the next is sent.
type sent struct {
	b     []byte
	files int
}

func TestDescriptorsThatAPeerSendsWronglyEndTheSessionAndAreClosed(t *testing.T) {
	two := carried{Files: []*os.File{os.Stdin, os.Stdout}}
	oneWay := func(says int, value any) []byte {
		return built(t, wire.KindOneWay, 0, 0, says, asks(t, "ignore", value))
	}
	half := func(b []byte) ([]byte, []byte) { return b[:len(b)/2], b[len(b)/2:] }
	saysTwo, restOfTwo := half(oneWay(2, two))
	saysNone, restOfNone := half(oneWay(0, two))
	ping := frame(2, 1, 0, 7)
	data := frame(0, 0, 1, 6, 1, 2, 3, 4, 5, 6)
	failed := wire.Error{Code: wire.Conflict, Text: "no"}
	for name, test := range map[string]struct {
		want  wire.Code
		sends []sent
	}{
		"fewer than the frame says":            {wire.Malformed, []sent{{oneWay(2, two), 1}}},
		"more than the frame says":             {wire.Malformed, []sent{{oneWay(2, two), 3}}},
		"none, and the frame says some":        {wire.Malformed, []sent{{oneWay(2, two), 0}}},
		"some, and the frame says none":        {wire.Malformed, []sent{{oneWay(0, nil), 1}}},
		"a frame says more than there may be":  {wire.Malformed, []sent{{oneWay(wire.MaxFiles+1, nil), wire.MaxFiles + 1}}},
		"as many as the kernel passes":         {wire.Malformed, []sent{{oneWay(wire.MaxFiles, nil), 253}}},
		"so many, and the frame says none":     {wire.Malformed, []sent{{oneWay(0, nil), 253}}},
		"so many, with a byte":                 {wire.Malformed, []sent{{oneWay(1, nil)[:1], 253}, {oneWay(1, nil)[1:], 0}}},
		"on the second half of a frame":        {wire.Malformed, []sent{{saysTwo, 0}, {restOfTwo, 2}}},
		"on both halves of a frame":            {wire.Malformed, []sent{{saysTwo, 2}, {restOfTwo, 2}}},
		"on the rest of one that says none":    {wire.Malformed, []sent{{saysNone, 0}, {restOfNone, 2}}},
		"on the last byte of a frame":          {wire.Malformed, []sent{{oneWay(1, nil)[:len(oneWay(1, nil))-1], 0}, {[]byte{0xc0}, 1}}},
		"on the second byte of a header":       {wire.Malformed, []sent{{oneWay(1, nil)[:1], 0}, {oneWay(1, nil)[1:], 1}}},
		"on the frame before the one":          {wire.Malformed, []sent{{oneWay(0, nil), 1}, {oneWay(1, nil), 0}}},
		"on a ping":                            {wire.Malformed, []sent{{ping, 1}}},
		"on the second half of a ping":         {wire.Malformed, []sent{{ping[:5], 0}, {ping[5:], 1}}},
		"on the data of a stream":              {wire.Malformed, []sent{{frame(1, 1, 1, 0), 0}, {data[:14], 0}, {data[14:], 1}}},
		"on a ping before a frame":             {wire.Malformed, []sent{{ping, 2}, {oneWay(2, two), 0}}},
		"on a cancel":                          {wire.Malformed, []sent{{built(t, wire.KindCancel, 0, 9, 1, nil), 1}}},
		"on a flush":                           {wire.Malformed, []sent{{built(t, wire.KindFlush, 0, 9, 1, nil), 1}}},
		"on a notice":                          {wire.Malformed, []sent{{built(t, wire.KindNotice, 0, 0, 1, wire.Notice{Name: "weather"}), 1}}},
		"on a reply to nothing":                {wire.Malformed, []sent{{built(t, wire.KindReply, 0, 9, 1, nil), 1}}},
		"on an error":                          {wire.Malformed, []sent{{built(t, wire.KindReply, wire.FlagError, 1, 1, failed), 1}}},
		"on a request that is none":            {wire.Malformed, []sent{{built(t, wire.KindRequest, 0, 9, 1, []int{1}), 1}}},
		"on a request of id 0":                 {wire.Malformed, []sent{{built(t, wire.KindRequest, 0, 0, 1, asks(t, "echo", nil)), 1}}},
		"on an open":                           {wire.Malformed, []sent{{built(t, wire.KindOpen, 0, 0, 1, wire.Open{}), 1}}},
		"on garbage":                           {wire.Unsupported, []sent{{[]byte("GET / HTTP/1.1\r\n\r\n"), 2}}},
		"on half a frame, and the end of file": {wire.Invalid, []sent{{saysTwo, 2}}},
		"on half a header, and that":           {wire.Invalid, []sent{{saysTwo[:5], 2}}},
		"more at a time than its credit":       {wire.OverQuota, overCredit(t)},
	} {
		t.Run(name, func(t *testing.T) {
			p, begin := onLane(t, session.Config{Handler: usual})
			s := begin()
			var all sync.WaitGroup
			defer all.Wait()
			all.Go(func() { s.Call(context.Background(), "m", nil, nil) }) // request 1
			until(t, "a call is in flight", func() bool { return s.Inspect().CallsWaiting == 1 })
			for _, part := range test.sends {
				p.send(part.b, numberedFiles(t, part.files)...)
				p.comes(s)
			}
			if test.want == wire.Invalid {
				p.conn.CloseWrite()
			}
			p.ended(s, test.want)
			p.conn.CloseWrite()
		})
	}
}

// overCredit returns one-way messages that wait, with a descriptor more than may.
func overCredit(t *testing.T) (list []sent) {
	n := int(wire.DefaultLimits.Files) / wire.MaxFiles
	for i := range n + 1 {
		says := wire.MaxFiles
		if i == n {
			says = 1
		}
		list = append(list, sent{built(t, wire.KindOneWay, 0, 0, says, asks(t, "block", nil)), says})
	}
	return list
}

// ended checks how the session ended, and that it has told its peer.
func (p *rawPeer) ended(s *session.Session, want wire.Code) {
	p.t.Helper()
	wait(p.t, "the end", s.Done())
	if end := s.End(); end.Code != want || end.Text == "" {
		p.t.Errorf("end %+v, want %v", end, want)
	}
	var h heard
	p.hear(&h, func(*heard) bool { return false })
	told := wire.End{}
	if n := len(h.frames); n > 0 && h.frames[n-1].Kind == wire.KindEnd {
		if err := wire.Unmarshal(h.frames[n-1].Body, &told); err != nil {
			p.t.Error(err)
		}
	}
	if lost := want == wire.Invalid; lost && told.Code != "" || !lost && told.Code != want {
		p.t.Errorf("the peer was told %+v", told)
	}
}

func TestDescriptorsEndASessionWithoutALane(t *testing.T) {
	first := frame(1, 1, 1, 0)
	claims := built(t, wire.KindOneWay, 0, 0, 1, asks(t, "ignore", nil))
	for name, sends := range map[string][]sent{
		"on a frame of yamux":               {{first, 1}},
		"on its second half":                {{first[:5], 0}, {first[5:], 1}},
		"on data that says some":            {{first, 0}, {frame(0, 0, 1, uint32(len(claims)), claims...), 1}},
		"that a frame says and do not come": {{first, 0}, {frame(0, 0, 1, uint32(len(claims)), claims...), 0}},
		"on a frame of the lane":            {{claims, 1}},
		"as many as the kernel passes":      {{first, 253}},
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
			p := &rawPeer{t: t, conn: a}
			for _, part := range sends {
				p.send(part.b, numberedFiles(t, part.files)...)
				p.comes(s)
			}
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != wire.Unsupported {
				t.Errorf("end %+v, want %v", end, wire.Unsupported)
			}
		})
	}
}

// A peer can attach descriptors to each byte that it sends. They may not pile up until the frame is whole: it need never be.
func TestDescriptorsOfAFrameThatIsNotWholeDoNotPileUp(t *testing.T) {
	const most = 100 // far more than a frame or two may have
	n := 2000
	if *long {
		n = 64 << 10
	}
	body := func(kind wire.Kind, says int) []byte {
		return header(wire.Header{Kind: kind, Files: uint8(says), ID: 1, Length: 64 << 10})
	}
	for name, head := range map[string][]byte{
		"a request that says none": body(wire.KindRequest, 0),
		"a request that says one":  body(wire.KindRequest, 1),
		"data of a stream":         append(frame(1, 1, 1, 0), frame(0, 0, 1, 64<<10)...),
	} {
		t.Run(name, func(t *testing.T) {
			p, begin := onLane(t, session.Config{Handler: usual})
			s := begin()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			go io.Copy(io.Discard, p.conn)
			before, peak := len(descriptors()), 0
			p.send(head)
			for i := range n {
				if !p.pass([]byte{0}, r) {
					break
				}
				if i%100 == 99 {
					p.comes(s)
					peak = max(peak, len(descriptors())-before)
				}
			}
			t.Logf("%d descriptors were open at a time", peak)
			if peak > most {
				t.Errorf("a peer had this process have %d descriptors open that belong to nothing", peak)
			}
			p.conn.CloseWrite()
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != wire.Malformed {
				t.Errorf("end %+v, want %v", end, wire.Malformed)
			}
		})
	}
}

// What breaks the protocol on the lane itself, without descriptors.
func TestAPeerThatBreaksTheLaneIsEndedWithTheReason(t *testing.T) {
	echo := built(t, wire.KindRequest, 0, 1, 0, asks(t, "echo", "x"))
	block := built(t, wire.KindRequest, 0, 1, 0, asks(t, "block", nil))
	for name, test := range map[string]struct {
		want wire.Code
		b    []byte
	}{
		"another version":                  {wire.Unsupported, []byte{2, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}},
		"another version of yamux":         {wire.Unsupported, append(frame(1, 1, 1, 0), 3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)},
		"an unknown kind":                  {wire.Malformed, header(wire.Header{Kind: 99})},
		"a kind of yamux that is unknown":  {wire.Malformed, frame(4, 0, 0, 0)},
		"an unknown flag":                  {wire.Malformed, header(wire.Header{Kind: wire.KindCancel, Flags: 0x80})},
		"a body that is too long":          {wire.Malformed, header(wire.Header{Kind: wire.KindRequest, ID: 1, Length: wire.MaxBody + 1})},
		"data on the lane":                 {wire.Malformed, header(wire.Header{Kind: wire.KindData})},
		"a large value on the lane":        {wire.Malformed, header(wire.Header{Kind: wire.KindLarge, ID: 1, Length: 1})},
		"a request twice":                  {wire.Malformed, append(block[:len(block):len(block)], block...)},
		"a stream twice":                   {wire.Malformed, append(frame(1, 1, 1, 0), frame(1, 1, 1, 0)...)},
		"a stream of the other side":       {wire.Malformed, frame(1, 1, 2, 0)},
		"more than a window at once":       {wire.Malformed, append(frame(1, 1, 1, 0), frame(0, 0, 1, 384<<10+1)...)},
		"a farewell of yamux with a fault": {wire.Invalid, append(echo[:len(echo):len(echo)], frame(3, 0, 0, 1)...)},
		"half a frame":                     {wire.Invalid, echo[:20]},
		"half a frame of yamux":            {wire.Invalid, frame(1, 1, 1, 0)[:7]},
		"half a frame in data":             {wire.Invalid, frame(0, 0, 1, 100, 1, 2, 3)},
		"nothing":                          {wire.Invalid, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, begin := onLane(t, session.Config{Handler: usual})
			s := begin()
			began := time.Now()
			if len(test.b) > 0 {
				p.send(test.b)
			}
			if test.want == wire.Invalid {
				p.conn.CloseWrite()
			}
			p.ended(s, test.want)
			if d := time.Since(began); d > patience {
				t.Errorf("took %v: somebody waited for the watchdog", d)
			}
		})
	}
}

func TestAPeerThatSendsNothingMoreIsStillToldWhatItBroke(t *testing.T) {
	for range 20 {
		p, begin := onLane(t, session.Config{Handler: usual})
		p.send(header(wire.Header{Kind: 99}))
		p.conn.CloseWrite()
		p.ended(begin(), wire.Malformed)
	}
}

// pass sends b with a descriptor, unless that is nil, which stays the caller's. It reports false when the session takes no more.
func (p *rawPeer) pass(b []byte, f *os.File) bool {
	if f == nil {
		return p.send(b)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		_, _, sendErr = p.conn.WriteMsgUnix(b, rights(int(fd)), nil)
	})
	if errors.Join(err, sendErr) == nil {
		p.sent += int64(len(b))
		return true
	}
	return false
}
