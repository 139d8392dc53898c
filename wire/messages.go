package wire

import "os"

// Bounds of what the messages before a session may say.
const (
	MaxEndpoint  = 128  // bytes of an endpoint's or a service's name
	MaxTitle     = 256  // bytes of a title
	MaxFeatures  = 32   // features that one side offers
	MaxEndpoints = 64   // endpoints of one instance
	MaxFacts     = 16   // facts that one side attaches to a session
	MaxFact      = 256  // bytes of a fact's name and of its value
	MaxBatch     = 100  // sessions told in one message
	MaxMethod    = 128  // bytes of a method's name
	MaxText      = 1024 // bytes of a reason for people
)

// Limits are what one side accepts of the other at a time: the credit it gives.
type Limits struct {
	Calls  int64 `msgpack:"c"` // requests that are not yet answered
	OneWay int64 `msgpack:"o"` // one-way messages that are not yet handled
	Bytes  int64 `msgpack:"b"` // bytes of the requests' values, and of the one-way messages' no more
	Files  int64 `msgpack:"f"` // descriptors of either
	// OneWayBytes are bytes of the one-way messages' values.
	OneWayBytes int64 `msgpack:"w,omitempty"`
}

// DefaultLimits are the limits of a side that states none.
var DefaultLimits = Limits{Calls: 256, OneWay: 256, Bytes: 4 << 20, Files: 64, OneWayBytes: 1 << 20}

// OrDefault returns l, with the default for each limit that is not positive, and no less than what one largest message needs.
func (l Limits) OrDefault() Limits {
	if l.Calls <= 0 {
		l.Calls = DefaultLimits.Calls
	}
	if l.OneWay <= 0 {
		l.OneWay = DefaultLimits.OneWay
	}
	if l.Bytes <= 0 {
		l.Bytes = DefaultLimits.Bytes
	}
	if l.Files <= 0 {
		l.Files = DefaultLimits.Files
	}
	if l.OneWayBytes <= 0 {
		l.OneWayBytes = DefaultLimits.OneWayBytes
	}
	l.Bytes, l.Files = max(l.Bytes, MaxBody), max(l.Files, MaxFiles)
	l.OneWayBytes = max(min(l.OneWayBytes, l.Bytes), MaxBody)
	return l
}

// OfOneWay returns l with the bytes of one-way messages as its bytes.
func (l Limits) OfOneWay() Limits {
	l.Bytes = l.OneWayBytes
	return l
}

// An Open asks the broker for a session.
type Open struct {
	Endpoint string   `msgpack:"e"`
	Within   int64    `msgpack:"w,omitempty"` // time left to the client, in milliseconds; 0: no limit of its own
	Title    string   `msgpack:"t,omitempty"` // what people read of this session in lists
	Features []string `msgpack:"f,omitempty"` // what the client offers
	Limits   Limits   `msgpack:"l"`           // what the client accepts of the instance
}

// maxItems bounds what is allocated for a message before it is validated: a list of empty values costs its sender a byte for each.
func (*Open) maxItems() int        { return MaxEndpoints }
func (*Accepted) maxItems() int    { return MaxEndpoints }
func (*Register) maxItems() int    { return MaxBatch }
func (*Sessions) maxItems() int    { return MaxBatch }
func (*SessionRefs) maxItems() int { return MaxBatch }
func (*TrafficList) maxItems() int { return MaxBatch }
func (*HandOver) maxItems() int    { return MaxEndpoints }
func (*Notice) maxItems() int      { return MaxEndpoints }

// Validate checks an Open that was received.
func (o *Open) Validate() error {
	if err := CheckName(o.Endpoint); err != nil {
		return err
	}
	if o.Within < 0 {
		return Errorf(Malformed, "open %s: time left of %d ms", o.Endpoint, o.Within)
	}
	return checkOffer(o.Title, o.Features)
}

// Routed tells a client which session it gets and who the instance is, by the broker's word or, with FeatureRelay, the instance's own. The instance's pidfd comes with
// the broker's where there is one.
type Routed struct {
	Session  string  `msgpack:"s"`
	Service  string  `msgpack:"n"`
	Instance int64   `msgpack:"i"` // the instance's number
	Process  Process `msgpack:"p"`
}

// Validate checks a Routed that was received.
func (r *Routed) Validate() error {
	if err := CheckID(r.Session); err != nil {
		return err
	}
	if err := CheckName(r.Service); err != nil {
		return err
	}
	if len(r.Process.Program) > MaxFact {
		return Errorf(Malformed, "routed to session %s: an oversized program", r.Session)
	}
	return nil
}

// A Process is who somebody is. The broker and instances have it from the kernel; a client has its instance's from a Routed.
type Process struct {
	PID     int    `msgpack:"p" json:"pid"`
	UID     uint32 `msgpack:"u" json:"uid"`
	GID     uint32 `msgpack:"g" json:"gid"`
	Program string `msgpack:"r,omitempty" json:"program"`
}

// Accepted ends the opening of a session, or a registration.
type Accepted struct {
	Features []string `msgpack:"f,omitempty"` // what is used: offered by both
	Limits   Limits   `msgpack:"l"`           // what the accepting side accepts of the other
}

// Validate checks an Accepted that was received.
func (a *Accepted) Validate() error { return checkOffer("", a.Features) }

// Register tells a broker which endpoints an instance serves, and the first batch of its live sessions.
type Register struct {
	Service   string        `msgpack:"n"`
	Instance  int64         `msgpack:"i,omitempty"` // its number, if it has one from an earlier broker
	Endpoints []string      `msgpack:"e"`
	Features  []string      `msgpack:"f,omitempty"`
	Sessions  []SessionInfo `msgpack:"s,omitempty"`
}

// Validate checks a Register that was received.
func (r *Register) Validate() error {
	if len(r.Endpoints) == 0 || len(r.Endpoints) > MaxEndpoints {
		return Errorf(Malformed, "register %s: %d endpoints, want 1 to %d", Printable(r.Service, MaxEndpoint), len(r.Endpoints), MaxEndpoints)
	}
	for _, name := range append([]string{r.Service}, r.Endpoints...) {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	if err := checkOffer("", r.Features); err != nil {
		return err
	}
	return checkSessions(r.Sessions)
}

// A SessionInfo is what an instance tells a broker of one session.
type SessionInfo struct {
	ID       string  `msgpack:"s"`
	Endpoint string  `msgpack:"e"`
	Title    string  `msgpack:"t,omitempty"`
	OpenedAt int64   `msgpack:"a"` // Unix time in nanoseconds
	ClosedAt int64   `msgpack:"z,omitempty"`
	End      *End    `msgpack:"x,omitempty"` // nil while it is open
	Client   Process `msgpack:"c"`
}

// Sessions is a further batch of a registration.
type Sessions struct {
	Sessions []SessionInfo `msgpack:"s"`
}

// Validate checks a Sessions that was received.
func (s *Sessions) Validate() error { return checkSessions(s.Sessions) }

func checkSessions(list []SessionInfo) error {
	if len(list) > MaxBatch {
		return Errorf(Malformed, "register: %d sessions in one batch, limit %d", len(list), MaxBatch)
	}
	for _, s := range list {
		if err := CheckID(s.ID); err != nil {
			return err
		}
		if err := CheckName(s.Endpoint); err != nil {
			return err
		}
		if len(s.Title) > MaxTitle || len(s.Client.Program) > MaxFact {
			return Errorf(Malformed, "register: session %s with an oversized title or program", s.ID)
		}
		if s.End != nil {
			if err := s.End.Validate(); err != nil {
				return err
			}
		}
	}
	return nil
}

// A HandOver passes a client's connection to an instance.
type HandOver struct {
	Session  string   `msgpack:"s"`
	Endpoint string   `msgpack:"e"`
	Title    string   `msgpack:"t,omitempty"`
	Features []string `msgpack:"f,omitempty"`
	Limits   Limits   `msgpack:"l"` // what the client accepts
	Client   Process  `msgpack:"c"`
	Routed   *Routed  `msgpack:"r,omitempty"` // what the instance tells the client before it accepts; nil: the broker has
	Socket   *os.File `msgpack:"d"`           // the client's connection
}

// Validate checks a HandOver that was received.
func (h *HandOver) Validate() error {
	if err := CheckID(h.Session); err != nil {
		return err
	}
	if err := CheckName(h.Endpoint); err != nil {
		return err
	}
	if h.Socket == nil {
		return Errorf(Malformed, "hand-over of %s without a socket", h.Session)
	}
	if h.Routed != nil {
		if err := h.Routed.Validate(); err != nil {
			return err
		}
	}
	return checkOffer(h.Title, h.Features)
}

// A Request calls a method, or sends it a one-way message.
type Request struct {
	Method string `msgpack:"m"`
	Within int64  `msgpack:"w,omitempty"` // time left to the caller, in milliseconds; 0: no limit
	Value  Raw    `msgpack:"v,omitempty"` // the method's own value; absent when it travels on a stream
	Length int64  `msgpack:"n,omitempty"` // bytes of a value that travels on a stream
}

// Validate checks a Request that was received.
func (r *Request) Validate() error {
	if r.Method == "" || len(r.Method) > MaxMethod || r.Within < 0 || r.Length < 0 || r.Length > MaxLarge {
		return Errorf(Malformed, "read a request: method of %d bytes, %d ms left, value of %d bytes", len(r.Method), r.Within, r.Length)
	}
	return nil
}

// A Notice tells the peer something about the session itself. Unknown ones are ignored.
type Notice struct {
	Name    string            `msgpack:"n"`           // Notice…
	Handled int64             `msgpack:"c,omitempty"` // NoticeHandled: one-way messages handled since the last such notice
	Bytes   int64             `msgpack:"b,omitempty"` // NoticeHandled: bytes of their bodies
	Files   int64             `msgpack:"d,omitempty"` // NoticeHandled: their descriptors
	Facts   map[string]string `msgpack:"f,omitempty"` // NoticeFacts: all facts of the sender
}

// The notices.
const (
	NoticeTerminating = "terminating" // the sender will end the session soon and takes no more requests
	NoticeHandled     = "handled"     // credit for one-way messages comes back
	NoticeFacts       = "facts"       // the sender's facts, for inspection
)

// A Stream begins a raw stream or a streaming call.
type Stream struct {
	Method string `msgpack:"m"`
	Within int64  `msgpack:"w,omitempty"` // time left to the caller, in milliseconds; 0: no limit
	Value  Raw    `msgpack:"v,omitempty"` // the streaming call's own value
}

// Validate checks a Stream that was received.
func (s *Stream) Validate() error {
	if s.Method == "" || len(s.Method) > MaxMethod || s.Within < 0 {
		return Errorf(Malformed, "read a stream: method of %d bytes, %d ms left", len(s.Method), s.Within)
	}
	return nil
}

// An End says who ended a session and why.
type End struct {
	Code   Code   `msgpack:"c" json:"code"`
	Origin Origin `msgpack:"o" json:"origin"`
	Text   string `msgpack:"t,omitempty" json:"text"`
}

// Validate checks an End that was received.
func (e *End) Validate() error {
	if e.Code == "" || len(e.Code) > 64 || len(e.Origin) > 16 || len(e.Text) > MaxText {
		return Errorf(Malformed, "read an end: code of %d bytes, text of %d", len(e.Code), len(e.Text))
	}
	return nil
}

// Bounded returns the end as it may travel: with a code, and a text of at most MaxText bytes.
func (e End) Bounded() End {
	e.Text = Cut(e.Text, MaxText)
	if e.Validate() != nil {
		e.Code, e.Origin = Internal, Local
	}
	return e
}

// String says who ended what and why, for people.
func (e End) String() string {
	if e.Code == "" {
		return "not ended"
	}
	return string(e.Code) + " by " + string(e.Origin) + ": " + Printable(e.Text, MaxText)
}

// Err returns the end as an error.
func (e End) Err() error { return &Error{Code: e.Code, Text: e.Text, Origin: e.Origin} }

func checkOffer(title string, features []string) error {
	if len(title) > MaxTitle {
		return Errorf(Malformed, "title of %d bytes, limit %d", len(title), MaxTitle)
	}
	if len(features) > MaxFeatures {
		return Errorf(Malformed, "%d features, limit %d", len(features), MaxFeatures)
	}
	for _, f := range features {
		if len(f) > MaxEndpoint {
			return Errorf(Malformed, "feature name of %d bytes, limit %d", len(f), MaxEndpoint)
		}
	}
	return nil
}

// The methods of the control connection between an instance and its broker.
const (
	MethodHandOver = "handover" // to the instance, one-way with the client's socket: HandOver
	MethodInspect  = "inspect"  // to the instance: SessionRef, answered with Inspection
	MethodTraffic  = "traffic"  // to the instance: SessionRefs, answered with TrafficList
	MethodClose    = "close"    // to the instance: SessionRef; answered when the session has ended
	MethodStop     = "stop"     // to the instance: it drains and ends
	MethodIdle     = "idle"     // to the instance: it ends if it has nothing to do; answered with Idle
	MethodSessions = "sessions" // to the broker: Sessions that are open, or ended since they were last told
)

// An Idle says whether an instance had nothing to do when it was asked: no session, none that was being opened, and no handler that ran.
type Idle struct {
	Ended bool `msgpack:"e,omitempty"` // it had nothing: it takes no more hand-overs, which are refused with Terminating, and stops
}

// A SessionRef names a session to an instance.
type SessionRef struct {
	Session string `msgpack:"s"`
	Text    string `msgpack:"t,omitempty"` // MethodClose: why
}

// Validate checks a SessionRef that was received.
func (r *SessionRef) Validate() error {
	if len(r.Text) > MaxText {
		return Errorf(Malformed, "reason of %d bytes, limit %d", len(r.Text), MaxText)
	}
	return CheckID(r.Session)
}

// SessionRefs name sessions to an instance, at most MaxBatch.
type SessionRefs struct {
	Sessions []string `msgpack:"s"`
}

// Validate checks SessionRefs that were received.
func (r *SessionRefs) Validate() error {
	if len(r.Sessions) > MaxBatch {
		return Errorf(Malformed, "%d sessions are asked for, limit %d", len(r.Sessions), MaxBatch)
	}
	return nil
}

// A TrafficList has the traffic of sessions in the order in which they were asked for; that of one that the instance does not have is zero.
type TrafficList struct {
	Traffic []Traffic `msgpack:"t"`
}

// Validate checks a TrafficList that was received.
func (l *TrafficList) Validate() error {
	if len(l.Traffic) > MaxBatch {
		return Errorf(Malformed, "the traffic of %d sessions, limit %d", len(l.Traffic), MaxBatch)
	}
	return nil
}

// Traffic is what a session has carried since it began, as one side counts it.
type Traffic struct {
	Calls    int64 `msgpack:"c,omitempty" json:"calls"` // requests of both sides
	Received int64 `msgpack:"r,omitempty" json:"bytes_received"`
	Sent     int64 `msgpack:"s,omitempty" json:"bytes_sent"`
}

// An Inspection is what one side of a session sees of it at one moment.
type Inspection struct {
	CallsServed  int64             `msgpack:"cs" json:"calls_served"`  // requests of the peer since the session began
	CallsServing int               `msgpack:"cn" json:"calls_serving"` // of these: not yet answered
	CallsMade    int64             `msgpack:"ms" json:"calls_made"`    // requests to the peer since the session began
	CallsWaiting int               `msgpack:"mn" json:"calls_waiting"` // of these: not yet answered
	LateReplies  int64             `msgpack:"lr" json:"late_replies"`  // replies that came after their caller's time and were dropped
	Streams      int               `msgpack:"st" json:"streams"`       // raw streams and streaming calls that are open
	Received     int64             `msgpack:"br" json:"bytes_received"`
	Sent         int64             `msgpack:"bs" json:"bytes_sent"`
	Facts        map[string]string `msgpack:"f,omitempty" json:"facts"`         // of this side
	PeerFacts    map[string]string `msgpack:"pf,omitempty" json:"peer_facts"`   // of the other side
	Channel      string            `msgpack:"ch,omitempty" json:"channel"`      // of its messages: ChannelLane or ChannelStream
	Socket       uint64            `msgpack:"si,omitempty" json:"socket"`       // inode of this side's socket
	PeerSocket   uint64            `msgpack:"pi,omitempty" json:"peer_socket"`  // inode of the other side's; 0: unknown
	SocketIn     int               `msgpack:"qi,omitempty" json:"socket_in"`    // bytes that have come and this side has not taken from its socket; SIOCINQ
	SocketOut    int               `msgpack:"qo,omitempty" json:"socket_out"`   // bytes of the kernel's memory with what the other side has not taken from its; SIOCOUTQ
	Queued       int               `msgpack:"qw,omitempty" json:"queued"`       // bytes that this side holds until its socket takes them
	Unread       int               `msgpack:"qs,omitempty" json:"unread"`       // bytes of streams that have come and nobody here has read
	Calls        []CallInfo        `msgpack:"cl,omitempty" json:"calls"`        // in flight, at most MaxInspected: those with the least time first
	OpenStreams  []StreamInfo      `msgpack:"sl,omitempty" json:"open_streams"` // at most MaxInspected: the oldest first
}

// MaxInspected is how many calls in flight, and how many streams, an Inspection names: so it fits into one frame.
const MaxInspected = 64

// A CallInfo is a request that is not yet answered.
type CallInfo struct {
	Method   string `msgpack:"m" json:"method"`
	Served   bool   `msgpack:"s,omitempty" json:"served"`   // here: the other side has made it
	Deadline Time   `msgpack:"d,omitempty" json:"deadline"` // of who has made it; 0: none
}

// What a StreamInfo is of.
const (
	StreamRaw  = "stream"    // bytes
	StreamCall = "streaming" // values of a streaming call
)

// A StreamInfo is a stream that is open.
type StreamInfo struct {
	Method   string `msgpack:"m" json:"method"`
	Kind     string `msgpack:"k,omitempty" json:"kind"`   // StreamRaw or StreamCall; empty: neither side has used it
	Served   bool   `msgpack:"s,omitempty" json:"served"` // here: the other side has opened it
	OpenedAt Time   `msgpack:"a" json:"opened_at"`
}

// What the message channel of a session is.
const (
	ChannelLane   = "lane"   // the socket itself
	ChannelStream = "stream" // its first stream
)

// FeatureRelay is the feature of instances that say routed themselves, and of clients that leave it to them: then both answers come together, without the
// instance's pidfd.
const FeatureRelay = "relay"

// FeatureLane is the feature of message channels that are the socket itself, and carry descriptors.
const FeatureLane = "lane"
