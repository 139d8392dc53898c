package broker

import "github.com/fairlead-dev/fairlead/services"

// docs say of each method of Endpoint what it does.
var docs = map[string]string{
	MethodStatus:   "what the broker is and how much it has to do",
	MethodServices: "the services that the caller may see",
	MethodSessions: "the sessions that the caller may see, some at a time",
	MethodInspect:  "one session, and what its instance sees of it",
	MethodClose:    "ends a session, and answers when it has ended",
	MethodService:  "one service: what its file says and what it has come to",
	MethodStart:    "starts a service, and answers when its instance is ready",
	MethodStop:     "stops a service, and answers when the last of its processes is gone",
	MethodRestart:  "stops a service and starts it again, and answers when its next instance is ready",
	MethodWait:     "answers when a service has an instance that is ready",
	MethodReset:    "forgets a service's failures, and lifts its suspension",
	MethodReload:   "reads the service files again",
	MethodLogs:     "the end of a service's log, and what comes",
	MethodMonitor:  "what happens in the broker, as it happens",
	MethodShutdown: "stops the broker",
}

// describe adds to each method what it does.
func describe(mux *services.Mux) {
	for name, text := range docs {
		services.Doc(mux, name, text)
	}
}
