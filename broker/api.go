package broker

import (
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// Endpoint is the broker's own endpoint.
const Endpoint = "fairlead.broker"

// The methods of Endpoint. What is not for everybody answers wire.NotPermitted with the rule; see the table in docs/services.md.
const (
	MethodStatus   = "status"   // nil, answered with Status
	MethodServices = "services" // nil, answered with Services
	MethodSessions = "sessions" // a streaming call: SessionsRequest, answered with any number of Sessions
	MethodInspect  = "inspect"  // SessionRequest, answered with Details
	MethodClose    = "close"    // SessionRequest, answered with Session when the session has ended
	MethodService  = "service"  // ServiceRequest, answered with ServiceDetails
	MethodStart    = "start"    // ServiceRequest, answered with ServiceDetails when the instance has registered
	MethodStop     = "stop"     // ServiceRequest, answered with ServiceDetails when the last process of the instance is gone
	MethodRestart  = "restart"  // ServiceRequest, answered with ServiceDetails when the next instance has registered
	MethodWait     = "wait"     // ServiceRequest, answered with ServiceDetails when an instance takes sessions
	MethodReset    = "reset"    // ServiceRequest, answered with ServiceDetails: a suspension is lifted, failures are forgotten
	MethodReload   = "reload"   // nil, answered with Reloaded
	MethodLogs     = "logs"     // a streaming call: LogsRequest, answered with any number of LogChunk
	MethodMonitor  = "monitor"  // a streaming call: MonitorRequest, answered with any number of Event
	MethodShutdown = "shutdown" // ShutdownRequest, answered with Status: the broker stops when the caller's session ends, or after 1 s
)

// Status says what a broker is and how much it has to do.
type Status struct {
	Version   string    `msgpack:"v" json:"version"`
	PID       int       `msgpack:"p" json:"pid"`
	UID       uint32    `msgpack:"u" json:"uid"`
	Socket    string    `msgpack:"s" json:"socket"`
	StartedAt wire.Time `msgpack:"a" json:"started_at"`
	Services  int       `msgpack:"n" json:"services"`             // that are known
	Instances int       `msgpack:"i" json:"instances"`            // that are registered
	Open      int       `msgpack:"o" json:"open"`                 // sessions
	Closed    int64     `msgpack:"c" json:"closed"`               // sessions since the broker started
	Denied    int64     `msgpack:"d" json:"denied"`               // opens, registrations and commands that the policy refused
	OverQuota int64     `msgpack:"q,omitempty" json:"over_quota"` // connections, opens and registrations that a limit refused
	Skipped   int       `msgpack:"k,omitempty" json:"skipped"`    // service files, or folders of them, that were not taken when they were read last
}

// The states of a service.
const (
	ServiceStopped   = "stopped"   // no instance; the next open starts one, if the broker can
	ServiceStarting  = "starting"  // an instance was started, or another broker's lives, and has not registered yet
	ServiceRunning   = "running"   // an instance is registered
	ServiceStopping  = "stopping"  // the instance was asked to stop, and is not gone yet
	ServiceWaiting   = "waiting"   // it failed, and is started again when the pause is over: at DueAt
	ServiceSuspended = "suspended" // it fails too often, and is not started before DueAt
)

// What a service's start was for.
const (
	CauseOpen      = "open"        // a client's open
	CauseLoad      = "run_at_load" // the broker's start, or that the service was added
	CauseKeepAlive = "keep_alive"  // the end of the instance before
	CauseCommand   = "command"     // an operator's start or restart
)

// A Cause says what a start was for.
type Cause struct {
	Kind     string        `msgpack:"k" json:"kind"`
	At       wire.Time     `msgpack:"a,omitempty" json:"at"`
	Endpoint string        `msgpack:"e,omitempty" json:"endpoint,omitempty"` // of an open
	Client   *wire.Process `msgpack:"c,omitempty" json:"client,omitempty"`   // of an open or a command
}

// An Exit says how an instance has ended.
type Exit struct {
	Instance int64     `msgpack:"i" json:"instance"`
	At       wire.Time `msgpack:"a" json:"at"`
	Status   string    `msgpack:"s" json:"status"`                     // for people; "unknown" where no kernel tells
	Signal   string    `msgpack:"g,omitempty" json:"signal,omitempty"` // that ended it
	Stderr   []string  `msgpack:"e,omitempty" json:"stderr,omitempty"` // the last lines
	Why      string    `msgpack:"w,omitempty" json:"why,omitempty"`    // of a start that failed, and of an instance that the broker has killed for a failure
	// Unregistered is set where it ended by itself before it registered, which is a failure whatever its status.
	Unregistered bool `msgpack:"u,omitempty" json:"unregistered,omitempty"`
}

// What a reload has left to do for a service that runs.
const (
	PendingChange  = "changed" // its file has changed: that takes effect at the next start
	PendingRemoval = "removed" // its file is gone: so is the service, when its instance is
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
	Starts    int64     `msgpack:"t,omitempty" json:"starts"`     // attempts, since the record of the service began
	Last      *Exit     `msgpack:"l,omitempty" json:"last_exit"`  // of the instance before
	DueAt     wire.Time `msgpack:"d,omitempty" json:"due_at"`     // of one that waits, is suspended, or is stopped in the pause after a failure
	Pending   string    `msgpack:"w,omitempty" json:"pending"`
}

// A ServiceRequest names a service.
type ServiceRequest struct {
	Name string `msgpack:"n"`
}

// Validate checks a ServiceRequest that was received.
func (r *ServiceRequest) Validate() error {
	if err := wire.CheckName(r.Name); err != nil {
		return fmt.Errorf("name of a service: %w", err)
	}
	return nil
}

// ServiceDetails are a service with what its file says and what it has come to.
type ServiceDetails struct {
	ServiceInfo `msgpack:"i,noinline"`
	File        string        `msgpack:"f,omitempty" json:"file"` // empty: it is built in, or has registered on its own
	Program     []string      `msgpack:"p,omitempty" json:"program"`
	User        string        `msgpack:"u,omitempty" json:"user"`
	Group       string        `msgpack:"g,omitempty" json:"group"`
	KeepAlive   string        `msgpack:"k,omitempty" json:"keep_alive"`
	RunAtLoad   bool          `msgpack:"r,omitempty" json:"run_at_load"`
	Throttle    time.Duration `msgpack:"t,omitempty" json:"throttle_interval"` // in nanoseconds, as the others
	Start       time.Duration `msgpack:"st,omitempty" json:"start_timeout"`
	Stop        time.Duration `msgpack:"so,omitempty" json:"stop_timeout"`
	Idle        time.Duration `msgpack:"id,omitempty" json:"idle_exit"`
	Hang        time.Duration `msgpack:"h,omitempty" json:"hang_timeout"`
	Allow       AllowInfo     `msgpack:"a" json:"allow"`
	Log         string        `msgpack:"l,omitempty" json:"log"`      // where the output goes, if it has a log of its own
	Waiting     int           `msgpack:"w,omitempty" json:"waiting"`  // opens that wait for an instance
	Failures    int           `msgpack:"q,omitempty" json:"failures"` // quick ones in a row
	Cause       *Cause        `msgpack:"c,omitempty" json:"cause"`    // of the last start
	Stopped     *Cause        `msgpack:"sb,omitempty" json:"stopped"` // the command that stopped it, until something starts it
	Keeper      int           `msgpack:"kp,omitempty" json:"keeper"`  // pid of the process that keeps the instance
}

// AllowInfo is who may do what beside root and the broker's user, as rules.
type AllowInfo struct {
	Open     []string `msgpack:"o,omitempty" json:"open"`
	Register []string `msgpack:"r,omitempty" json:"register"`
	Admin    []string `msgpack:"a,omitempty" json:"admin"`
}

// Reloaded says what a reload has changed, by the services' names.
type Reloaded struct {
	Added    []string        `msgpack:"a,omitempty" json:"added"`
	Changed  []string        `msgpack:"c,omitempty" json:"changed"` // those that run are pending
	Removed  []string        `msgpack:"r,omitempty" json:"removed"` // likewise
	Problems []ReloadProblem `msgpack:"p,omitempty" json:"problems"`
}

// A ReloadProblem is of a service file that was skipped, or of the quotas. What an earlier one has declared stays as it was.
type ReloadProblem struct {
	File string `msgpack:"f" json:"file"`
	Line int    `msgpack:"l,omitempty" json:"line"`
	Key  string `msgpack:"k,omitempty" json:"key"`
	Rule string `msgpack:"r" json:"rule"`
}

// maxLogLines is how many lines of a log may be asked for.
const maxLogLines = 10_000

// A LogsRequest asks for the end of a service's log.
type LogsRequest struct {
	Name   string `msgpack:"n"`
	Lines  int    `msgpack:"l,omitempty"` // of its end; 0: 100; -1: none
	Follow bool   `msgpack:"f,omitempty"` // and what comes, until the call ends
}

// Validate checks a LogsRequest that was received.
func (r *LogsRequest) Validate() error {
	if r.Lines < -1 || r.Lines > maxLogLines {
		return wire.Errorf(wire.Malformed, "%d lines of a log: want at most %d", r.Lines, maxLogLines)
	}
	return (&ServiceRequest{r.Name}).Validate()
}

// A LogChunk is a part of a log, as it was written.
type LogChunk struct {
	Data []byte `msgpack:"d"`
}

// Services are all services, by name.
type Services struct {
	Services []ServiceInfo `msgpack:"s"`
	Skipped  int           `msgpack:"k,omitempty"` // service files, or folders of them, that were not taken when they were read last
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
	// Traffic is what the instance says that the session has carried; only where it was asked for, of an open session whose instance has answered in time.
	Traffic *wire.Traffic `msgpack:"tr,omitempty" json:"traffic,omitempty"`
}

// A SessionsRequest asks for a list of sessions, which comes in the order they were opened.
type SessionsRequest struct {
	State string `msgpack:"s,omitempty"` // "open", which includes opening, "closed" or "all"; empty: open

	// What a session must have to be listed; the zero value of each: anything.
	Endpoint string    `msgpack:"e,omitempty"`
	PID      int       `msgpack:"p,omitempty"` // of its client or its instance
	UID      *uint32   `msgpack:"u,omitempty"` // of its client
	End      wire.Code `msgpack:"x,omitempty"`
	Title    string    `msgpack:"t,omitempty"` // is in its title

	Traffic bool `msgpack:"r,omitempty"` // what each has carried is told, too, for which its instance is asked
}

// Validate checks a SessionsRequest that was received.
func (r *SessionsRequest) Validate() error {
	switch r.State {
	case "", SessionOpen, SessionClosed, "all":
		return nil
	}
	return wire.Errorf(wire.Malformed, "state %q: want open, closed or all", wire.Printable(r.State, 32))
}

// Sessions is a part of a list: those that were there when it was asked for and still are what is asked for, each once, as it is when the part is sent.
type Sessions struct {
	Sessions []Session `msgpack:"s"`
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
