// Package explain says what the codes of errors and of sessions' ends mean, what usually causes them, and what to do.
package explain

import (
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/wire"
)

// A Code is what there is to know of one code.
type Code struct {
	Code  wire.Code `json:"code"`
	Means string    `json:"means"`         // of an error
	End   string    `json:"end,omitempty"` // of the end of a session; empty: none has it
	Cause string    `json:"cause"`         // that is usual
	Do    string    `json:"do"`
}

// Codes returns all codes: those that say where to look first before those that any answer may have.
func Codes() []Code {
	return []Code{
		{
			Code: wire.UnknownEndpoint, Means: "No service has this endpoint.",
			End:   "The instance does not serve the endpoint that the broker has sent the client to.",
			Cause: "The name is mistyped, the service file is missing or broken, or a service that registers by itself is not running.",
			Do:    "Compare with 'brokerctl service list'. 'brokerd check' says what is wrong with service files, and 'brokerctl service reload' has them read again.",
		},
		{
			Code: wire.NotPermitted, Means: "The policy forbids it. The text names the rule.",
			Cause: "The caller is neither root nor the broker's own user, and no rule of the service's [allow] table names its uid or gid.",
			Do:    "Add a rule to allow.open, allow.register or allow.admin of the service file, and 'brokerctl service reload'. 'brokerctl monitor --filter denied' shows who asks for what.",
		},
		{
			Code: wire.StartFailed, Means: "The service was started and ended before it registered, or it could not be started.",
			Cause: "The program is not there, may not be executed, or stops with an error of its own. The text has its exit status and the last it wrote on stderr.",
			Do:    "'brokerctl service why NAME' and 'brokerctl service logs NAME'. After a failure an open waits for a pause, which 'brokerctl service start NAME' does not.",
		},
		{
			Code: wire.StartTimeout, Means: "The service was started and did not register in time.",
			Cause: "The program does something else first, waits for something, or never registers: it is not built as a service. Or an instance lives that has lost its broker.",
			Do:    "Look into 'brokerctl service logs NAME'; if it only takes long, set start_timeout in its service file.",
		},
		{
			Code: wire.Suspended, Means: "The service has failed five times in a row, each soon after its start, and is not started for a time.",
			Cause: "What makes it fail is still so. The text has the last failure.",
			Do:    "Find out by 'brokerctl service why NAME', mend it, and lift the suspension by 'brokerctl service reset NAME'.",
		},
		{
			Code: wire.OverQuota, Means: "A limit is reached. The text says which, and by how much.",
			End:   "The peer has sent more than it was given credit for, or has left too much unread: it breaks the protocol, or is stopped.",
			Cause: "More opens wait for one service than it can take, a value is larger than may be sent, or a client starts many things at once.",
			Do:    "Try again later, as the error says when, with fewer at a time. 'brokerctl session list --limit 1' counts sessions, and 'brokerctl monitor --filter over_quota' shows who meets the broker's limits.",
		},
		{
			Code: wire.Refused, Means: "The service has refused the session, for reasons of its own.",
			End:   "The service has refused the session, for reasons of its own.",
			Cause: "The service's own check of its clients; or the service crashed three times in a row when this client was let through first.",
			Do:    "The text says why. After crashes 'brokerctl service reset NAME' lets the client through again.",
		},
		{
			Code: wire.Hung, Means: "The instance is alive and does not answer: the last exit of its service has this as its cause.",
			End:   "Its instance did not answer the broker's question whether it is there, and was replaced. The client sees interrupted.",
			Cause: "The program is stopped by a signal or a debugger, or deadlocked; or hang_timeout of its service file is too short for a machine that is loaded.",
			Do:    "'brokerctl service logs NAME' shows what it was at. Of a program that the broker has not started, end the process.",
		},
		{
			Code: wire.Terminating, Means: "The service, or the broker, is being stopped, and takes nothing new.",
			End:   "The service was stopped in order: what it had been asked before was answered.",
			Cause: "Somebody has stopped or restarted it, it was idle, or the machine goes down.",
			Do:    "Open again: if the service can be started, the next instance answers. 'brokerctl service why NAME' says who has stopped it.",
		},
		{
			Code: wire.Interrupted, Means: "The service's side of the session was lost. Opening again may work.",
			End:   "The service's side was lost: it crashed, was killed or stopped; or an operator has closed the session, which its end says.",
			Cause: "A crash of the service, or 'brokerctl session close'. The end of the session in 'brokerctl session list --state closed' has the exit status, where the broker has started the service.",
			Do:    "Open the endpoint again, and send again what the service is to know: of a request that had left nobody knows whether it was done. 'brokerctl service why NAME' and 'brokerctl session list --end interrupted' say more.",
		},
		{
			Code: wire.Invalid, Means: "The session was closed: for an end this is the usual one, and nothing went wrong. An error has it where something uses a session that is over, which will never work again.",
			End:   "It was closed, by the client in order or as it exited, or by the instance.",
			Cause: "Something still uses a session that was closed.",
			Do:    "Nothing, for an end. An error is a mistake of the program that has it: it has to open another session.",
		},
		{
			Code: wire.UnknownMethod, Means: "The endpoint has no such method, or it is of another kind, as a streaming call.",
			Cause: "The name is mistyped, or client and service are of different versions.",
			Do:    "Compare with 'brokerctl methods ENDPOINT'.",
		},
		{
			Code: wire.Malformed, Means: "Bad input: it cannot be decoded, or is not what is allowed. Nothing was done.",
			End:   "The peer has sent what is no frame of the protocol, or none that may come there.",
			Cause: "A value that is out of its bounds, or a client and a service that do not agree on a message; of an end, a peer that has a bug or is hostile.",
			Do:    "The text says what is wrong with which value. FAIRLEAD_TRACE=1 prints the frames of a process.",
		},
		{
			Code: wire.DeadlineExceeded, Means: "The time that the caller gave is over. What was asked for may be done all the same.",
			Cause: "The service or the broker is stopped, overloaded, or waits for something itself.",
			Do:    "'brokerctl session inspect ID' shows what is in flight, and 'brokerctl service why NAME' whether it is starting. Where it only takes long, give --timeout.",
		},
		{
			Code: wire.Canceled, Means: "The caller no longer wants it.",
			Cause: "The caller gave up, or ended while the service was at it.",
			Do:    "Nothing: whoever would have had the answer does not want it.",
		},
		{
			Code: wire.NotFound, Means: "What was named is not there.",
			Cause: "It is mistyped, or gone: the broker remembers 1,000 closed sessions.",
			Do:    "The list of what there is has the same noun, as 'brokerctl session list --state all'.",
		},
		{
			Code: wire.Conflict, Means: "Somebody else has it, or it cannot be both. The text names the holder.",
			Cause: "Another process has registered the endpoint, or another broker runs at the socket; two files declare one service; a prefix of an id is that of several.",
			Do:    "Look at the holder, by its pid, and stop it if it should not have it.",
		},
		{
			Code: wire.Exhausted, Means: "Nothing is left to give.",
			Cause: "All addresses of a network are held. They are free again when their sessions have ended and their containers are gone.",
			Do:    "'brokerctl network list' shows how full they are, and 'brokerctl lease list' who holds what: also dying and orphaned leases, whose processes live on.",
		},
		{
			Code: wire.Unavailable, Means: "It cannot be had now; later it may.",
			End:   "The session was handed over, and no instance has taken it.",
			Cause: "An instance that is stopped or overloaded, a service without a program that nobody has started, or a broker that is being stopped.",
			Do:    "'brokerctl service list' shows its state. Try again; a client that waits, as most do, does so by itself.",
		},
		{
			Code: wire.Unsupported, Means: "This side cannot do that.",
			End:   "The peer speaks another version of the protocol, or has sent what both sides had not agreed on.",
			Cause: "Client, service and broker are of different versions, or FAIRLEAD_LANE=0 and descriptors do not go together.",
			Do:    "Compare the versions, as 'brokerctl version' and 'brokerctl status' show them.",
		},
		{
			Code: wire.Internal, Means: "A fault in whoever answers.",
			End:   "The instance could not go on with this session.",
			Cause: "A handler that failed or panicked, a full disk, or the limit of open files. Also an error to which its author gave no code.",
			Do:    "Look into 'brokerctl service logs NAME', or into the broker's own log.",
		},
	}
}

// Of returns what there is to know of a code. It fails with wire.NotFound, and names those that may be meant.
func Of(code string) (Code, error) {
	var known []string
	for _, c := range Codes() {
		if string(c.Code) == code {
			return c, nil
		}
		known = append(known, string(c.Code))
	}
	return Code{}, wire.Errorf(wire.NotFound, "no error has the code %s%s", wire.Printable(code, 64), nearest.Question(code, known))
}
