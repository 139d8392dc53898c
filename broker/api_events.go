package broker

import "github.com/fairlead-dev/fairlead/wire"

// The kinds of events. An instance tells of its sessions when it can: of one that has ended by then there is only the end.
const (
	EventSessionOpened        = "session_opened" // an instance has accepted it
	EventSessionClosed        = "session_closed" // also of one that no instance has accepted
	EventServiceState         = "service_state"
	EventInstanceStarted      = "instance_started" // by the broker
	EventInstanceRegistered   = "instance_registered"
	EventInstanceUnregistered = "instance_unregistered" // its control connection is lost, or given up
	EventInstanceEnded        = "instance_ended"        // the last of its processes is gone, or its start has failed
	EventDenied               = "denied"
	EventOverQuota            = "over_quota" // a limit of the broker's
	EventReload               = "reload"
	EventDropped              = "dropped" // for this reader: events that were forgotten before they could be sent
)

// EventKinds returns what a MonitorRequest may ask for.
func EventKinds() []string {
	return []string{
		EventSessionOpened, EventSessionClosed, EventServiceState, EventInstanceStarted, EventInstanceRegistered, EventInstanceUnregistered, EventInstanceEnded,
		EventDenied, EventOverQuota, EventReload,
	}
}

// An Event is something that has happened. It has the fields of its kind. Texts of others are cut after 512 bytes.
type Event struct {
	Seq      int64         `msgpack:"q" json:"seq"` // from 1 on, since the broker started; without gaps, but not everybody sees all. Of dropped: the last one
	At       wire.Time     `msgpack:"a" json:"at"`
	Kind     string        `msgpack:"k" json:"kind"`
	Service  string        `msgpack:"n,omitempty" json:"service,omitempty"`
	Endpoint string        `msgpack:"e,omitempty" json:"endpoint,omitempty"`
	Instance int64         `msgpack:"i,omitempty" json:"instance,omitempty"` // its number
	PID      int           `msgpack:"p,omitempty" json:"pid,omitempty"`      // of the instance
	Session  string        `msgpack:"s,omitempty" json:"session,omitempty"`
	Title    string        `msgpack:"t,omitempty" json:"title,omitempty"`
	Client   *wire.Process `msgpack:"c,omitempty" json:"client,omitempty"`  // of a session, or who was refused
	End      *wire.End     `msgpack:"x,omitempty" json:"end,omitempty"`     // of a session
	Was      string        `msgpack:"w,omitempty" json:"was,omitempty"`     // service_state: the state before
	State    string        `msgpack:"st,omitempty" json:"state,omitempty"`  // service_state: the state
	DueAt    wire.Time     `msgpack:"d,omitempty" json:"due_at,omitzero"`   // service_state: of one that waits or is suspended
	Cause    *Cause        `msgpack:"b,omitempty" json:"cause,omitempty"`   // instance_started
	Exit     *Exit         `msgpack:"l,omitempty" json:"exit,omitempty"`    // instance_ended, without what was written on stderr
	Code     wire.Code     `msgpack:"o,omitempty" json:"code,omitempty"`    // of a refusal
	Text     string        `msgpack:"f,omitempty" json:"text,omitempty"`    // of a refusal
	More     int64         `msgpack:"m,omitempty" json:"more,omitempty"`    // refusals before this one that are no events: ten a second are
	Reload   *ReloadCounts `msgpack:"r,omitempty" json:"reload,omitempty"`  // reload
	Dropped  int64         `msgpack:"y,omitempty" json:"dropped,omitempty"` // dropped: how many
}

// ReloadCounts are how many services a reload has changed, and how many problems it has met.
type ReloadCounts struct {
	Added    int `msgpack:"a" json:"added"`
	Changed  int `msgpack:"c" json:"changed"`
	Removed  int `msgpack:"r" json:"removed"`
	Problems int `msgpack:"p" json:"problems"`
}

// A MonitorRequest asks for events: those that a caller may see, as sessions and services in lists. With neither From nor Since only what comes.
type MonitorRequest struct {
	From  int64     `msgpack:"f,omitempty"` // from this number on, of those that are kept: 1 is all of them. It fails with wire.NotFound beyond what comes next
	Since wire.Time `msgpack:"s,omitempty"` // from this time on, without From
	Kinds []string  `msgpack:"k,omitempty"` // only these, or those that begin with one of them and "_", as session; none: all
}

// A ShutdownRequest asks the broker to stop.
type ShutdownRequest struct {
	Leave bool `msgpack:"l,omitempty"` // what it has started lives on for the next broker
}
