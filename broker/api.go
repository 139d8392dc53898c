package broker

import (
	"github.com/fairlead-dev/fairlead/wire"
)

// Endpoint is the broker's own endpoint.
const Endpoint = "fairlead.broker"

// The methods of Endpoint.
const (
	MethodStatus   = "status"   // nil, answered with Status
	MethodServices = "services" // nil, answered with Services
	MethodSessions = "sessions" // SessionsRequest, answered with Sessions
	MethodInspect  = "inspect"  // SessionRequest, answered with Details
	MethodClose    = "close"    // SessionRequest, answered with Session when the session has ended
)

// Status says what a broker is and how much it has to do.
type Status struct {
	Version   string    `msgpack:"v" json:"version"`
	PID       int       `msgpack:"p" json:"pid"`
	UID       uint32    `msgpack:"u" json:"uid"`
	Socket    string    `msgpack:"s" json:"socket"`
	StartedAt wire.Time `msgpack:"a" json:"started_at"`
	Services  int       `msgpack:"n" json:"services"`  // that are known
	Instances int       `msgpack:"i" json:"instances"` // that are registered
	Open      int       `msgpack:"o" json:"open"`      // sessions
	Closed    int64     `msgpack:"c" json:"closed"`    // sessions since the broker started
	Denied    int64     `msgpack:"d" json:"denied"`    // opens and registrations that the policy refused
}

// The states of a service.
const (
	ServiceStopped  = "stopped"  // no instance; the next open starts one, if the broker can
	ServiceStarting = "starting" // an instance was started, or another broker's lives, and has not registered yet
	ServiceRunning  = "running"  // an instance is registered
)

// A ServiceInfo describes a service.
type ServiceInfo struct {
	Name      string    `msgpack:"n" json:"name"`
	Endpoints []string  `msgpack:"e" json:"endpoints"`
	State     string    `msgpack:"s" json:"state"`
	PID       int       `msgpack:"p,omitempty" json:"pid"` // of the instance; 0: none
	Instance  int64     `msgpack:"i,omitempty" json:"instance"`
	StartedAt wire.Time `msgpack:"a,omitempty" json:"started_at"` // when the process was started
	Sessions  int       `msgpack:"c" json:"sessions"`             // that are open
}

// Services are all services, by name.
type Services struct {
	Services []ServiceInfo `msgpack:"s"`
}

// The states of a session.
const (
	SessionOpening = "opening" // handed over, and not yet accepted
	SessionOpen    = "open"
	SessionClosed  = "closed"
)

// A Session describes a session. Its end is told as the instance saw it: origin local is the instance, peer the client.
type Session struct {
	ID       string       `msgpack:"s" json:"id"`
	Endpoint string       `msgpack:"e" json:"endpoint"`
	State    string       `msgpack:"st" json:"state"`
	Title    string       `msgpack:"t,omitempty" json:"title"`
	OpenedAt wire.Time    `msgpack:"a" json:"opened_at"`
	ClosedAt wire.Time    `msgpack:"z,omitempty" json:"closed_at"`
	End      *wire.End    `msgpack:"x,omitempty" json:"end"`
	Client   wire.Process `msgpack:"c" json:"client"`
	Instance wire.Process `msgpack:"i" json:"instance"`
}

// A SessionsRequest asks for a list of sessions in the order they were opened.
type SessionsRequest struct {
	State    string `msgpack:"s,omitempty"` // "open", which includes opening, "closed" or "all"; empty: open
	Endpoint string `msgpack:"e,omitempty"` // only of this one
	After    string `msgpack:"a,omitempty"` // the Next of the reply before
}

// Validate checks a SessionsRequest that was received.
func (r *SessionsRequest) Validate() error {
	switch r.State {
	case "", SessionOpen, SessionClosed, "all":
		return nil
	}
	return wire.Errorf(wire.Malformed, "state %q: want open, closed or all", wire.Printable(r.State, 32))
}

// Sessions is one page of a list.
type Sessions struct {
	Sessions []Session `msgpack:"s"`
	Next     string    `msgpack:"n,omitempty"` // to ask for the next page with; empty: there is none
}

// A SessionRequest names a session by a unique prefix of its id.
type SessionRequest struct {
	ID   string `msgpack:"s"`
	Text string `msgpack:"t,omitempty"` // close: why
}

// Details are a session, and what its instance sees of it if it is open.
type Details struct {
	Session    Session          `msgpack:"s"`
	Inspection *wire.Inspection `msgpack:"i,omitempty"`
}
