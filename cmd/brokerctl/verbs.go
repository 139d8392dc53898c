package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
)

// How long a command may take without --timeout. A service that is stopped has 20 s for that unless its file says otherwise, and one that is started 10 s.
const (
	ordinaryPatience = 10 * time.Second
	longPatience     = time.Minute
)

// What a command's operand is, for whom it is missing.
const (
	aSession   = "the id of one session, as 'session list' shows it"
	aService   = "the name of one service, as 'service list' shows it"
	anEndpoint = "the name of one endpoint, as 'service list' shows it"
	aLease     = "the id of one lease, one of its addresses, or its hostname, as 'lease list' shows them"
	aNetwork   = "the name of one network, as 'network list' shows it"
	aShell     = "bash, zsh or fish"
	aCode      = "the code of an error, as not_permitted"
	aCall      = "an endpoint, a method, and maybe the request: JSON, @FILE, or - for standard input"
)

// A verb is what can be done, and with which flags beside those of all commands.
type verb struct {
	name     string                                // one word, or a noun and a verb
	usage    string                                // what stands behind the name
	about    string                                // what it does, in one line
	more     string                                // what its help says beside that
	examples []string                              // what stands behind brokerctl
	all      func(context.Context) error           // without operands; nil: it takes one
	one      func(context.Context, string) error   // with one operand; nil: it takes none
	takes    string                                // what that is
	words    func(context.Context, []string) error // of one that takes operands, and sees itself which
	flags    []string
	columns  []string      // of the table, for one that lists
	patience time.Duration // without --timeout; 0: ordinaryPatience
}

// listFlags are those of all commands that list.
var listFlags = []string{"no-legend", "columns", "sort", "reverse", "limit", "watch"}

// verbs are all commands, in the order in which help shows them.
func (c *command) verbs() []verb {
	return slices.Concat([]verb{
		{
			name: "status", all: c.status, about: "what the broker is and how much it has to do", flags: []string{"watch"},
			examples: []string{"status", "status --system --json", "status --watch"},
		},
		{
			name: "service list", all: c.serviceList, about: "the services and their instances", flags: listFlags, columns: serviceListing.Names(),
			more:     "SINCE is how long ago the instance was started, or the last one ended. A service that waits or is suspended shows until when.",
			examples: []string{"service list", "service list --columns name,state,pid --sort state", "service list --watch=5s"},
		},
		{
			name: "service inspect", usage: "NAME", one: c.serviceInspect, takes: aService, about: "one service: what its file says and what it has come to",
			examples: []string{"service inspect com.example.echo"},
		},
		{
			name: "service start", usage: "NAME", one: c.order(broker.MethodStart, started), takes: aService, patience: longPatience,
			about:    "start a service; done when its instance is ready",
			more:     "A pause after failures does not hold it up, a suspension does: 'service reset' lifts that.",
			examples: []string{"service start com.example.echo"},
		},
		{
			name: "service stop", usage: "NAME", one: c.order(broker.MethodStop, stopped), takes: aService, patience: longPatience,
			about:    "stop a service; done when the last of its processes is gone",
			more:     "It is not kept alive until something starts it again, as an open of one of its endpoints does.",
			examples: []string{"service stop com.example.echo --timeout 5s"},
		},
		{
			name: "service restart", usage: "NAME", one: c.order(broker.MethodRestart, restarted), takes: aService, patience: longPatience,
			about:    "stop a service and start it again; done when its next instance is ready",
			examples: []string{"service restart com.example.echo"},
		},
		{
			name: "service wait", usage: "NAME", one: c.order(broker.MethodWait, ready), takes: aService, patience: longPatience,
			about:    "wait until a service has an instance that is ready",
			examples: []string{"service wait com.example.echo --timeout 5m"},
		},
		{
			name: "service reset", usage: "NAME", one: c.order(broker.MethodReset, reset), takes: aService,
			about:    "forget a service's failures, and lift its suspension",
			examples: []string{"service reset com.example.echo"},
		},
		{
			name: "service why", usage: "NAME", one: c.serviceWhy, takes: aService, about: "what caused its last start, and why it is not running if it is not",
			examples: []string{"service why com.example.echo"},
		},
		{
			name: "service logs", usage: "NAME", one: c.serviceLogs, takes: aService, flags: []string{"follow", "lines"}, about: "the end of its output",
			examples: []string{"service logs com.example.echo", "service logs -f -n 20 com.example.echo"},
		},
		{
			name: "service reload", all: c.serviceReload, about: "have the broker read its service files again",
			more:     "Each problem is a line FILE:LINE: key: rule on stderr, and the exit code is 1; the rest has taken effect. A network service that runs does as with 'network reload'.",
			examples: []string{"service reload"},
		},
		{
			name: "session list", all: c.sessionList, about: "the sessions, in the order they were opened",
			flags:   append([]string{"state", "endpoint", "pid", "uid", "end", "title"}, listFlags...),
			columns: c.sessionListing().Names(),
			more: "All filters that are given must hold. --end alone looks among the closed ones. With --watch there are the columns CALLS/S, IN/S and OUT/S,\n" +
				"too: calls of both sides, and bytes from the client and to it, each second, as the instances count them.\n\n" +
				"END says who ended a closed session, and why: 'closed by the client', also if it exited or is gone, is how most end. A code, as (interrupted), is\n" +
				"behind an end that is a fault. --end wants one code: invalid of those that client or instance closed, terminating of those whose service was stopped,\n" +
				"interrupted of those whose instance is gone and of those closed by an operator. 'brokerctl explain CODE' says more.",
			examples: []string{
				"session list", "session list --state closed --json", "session list --endpoint com.example.echo --sort age --limit 10",
				"session list --end interrupted --title nightly", "session list --pid 4711 --state all",
				"session list --watch --sort calls/s --reverse --limit 20",
			},
		},
		{
			name: "session inspect", usage: "ID", one: c.sessionInspect, takes: aSession, flags: []string{"watch"},
			about:    "one session, and what it holds: calls in flight, streams, leases, and what waits in its queues",
			more:     "A unique prefix of the id is enough. --watch adds what it carries each second.",
			examples: []string{"session inspect 3fa2c1d0", "session inspect 3fa2c1d0 --watch=1s"},
		},
		{
			name: "session close", usage: "ID", one: c.sessionClose, takes: aSession, flags: []string{"reason"}, about: "end a session",
			more:     "Its instance goes on. The client is told that it was closed on purpose: broker-run ends its container then, also with --on-loss=reclaim.",
			examples: []string{"session close 3fa2c1d0 --reason 'maintenance'"},
		},
		{
			name: "lease list", all: c.onNetwork(c.leaseList), about: "the leases of the network service, which it has started", flags: append([]string{"network"}, listFlags...),
			columns: console.LeaseListing.Names(), examples: []string{"lease list --network default", "lease list --columns hostname,addresses --no-legend"},
		},
		{
			name: "lease inspect", usage: "ID|ADDRESS|HOSTNAME", one: c.onNetworkOne(c.leaseInspect), takes: aLease, flags: []string{"network"},
			about:    "one lease, and what it hangs on",
			examples: []string{"lease inspect web --network lab", "lease inspect 10.88.0.2"},
		},
		{
			name: "lease release", usage: "ID|ADDRESS|HOSTNAME", one: c.onNetworkOne(c.leaseRelease), takes: aLease, flags: []string{"network"},
			about: "release a lease that no session holds, although something lives that keeps it",
			more: "Its addresses are given out again at once: make sure that nobody uses them. One that is held is released by its session alone:\n" +
				"'session close' ends that session, upon which broker-run ends its container, and the lease once nothing else keeps it.",
			examples: []string{"lease release 46f143cea281c473"},
		},
		{
			name: "lease watch", all: c.onNetwork(c.leaseWatch), flags: []string{"network"}, about: "the leases, and then what happens to them, until ^C",
			more:     "A line 'dropped' says how many changes there was no time for; the list comes anew behind it.",
			examples: []string{"lease watch", "lease watch --network lab --json"},
		},
		{
			name: "network list", all: c.onNetwork(c.networkList), about: "the networks and how full they are; it has the network service started", flags: listFlags,
			columns: networkListing.Names(), examples: []string{"network list", "network list --sort free --limit 3"},
		},
		{
			name: "network inspect", usage: "NAME", one: c.onNetworkOne(c.networkInspect), takes: aNetwork, about: "one network: what its hosts are told, and how full it is",
			examples: []string{"network inspect default"},
		},
		{
			name: "network reload", all: c.onNetwork(c.networkReload), about: "have the network service read its networks again",
			more:     "A change that would leave a lease without its address is refused as a whole. 'service reload' does this, too.",
			examples: []string{"network reload"},
		},
		{
			name: "methods", usage: "ENDPOINT", one: c.methods, takes: anEndpoint,
			about:    "what can be called at an endpoint, and with which values; it has its service started",
			examples: []string{"methods com.example.counter"},
		},
		{
			name: "call", usage: "ENDPOINT METHOD [JSON|@FILE|-]", words: c.call, takes: aCall, flags: []string{"accept"},
			about: "call a method of any service, and print its reply as JSON; it has its service started",
			more: "The request is JSON: a string has its own quotes within the shell's, as '\"visits\"'. What a streaming call or a stream answers comes until it ends,\n" +
				"unless --timeout is given.",
			examples: []string{`call com.example.counter add '{"counter": "visits", "by": 1}'`, `call com.example.counter get '"visits"'`, "call com.example.counter get @request.json --accept not_found"},
		},
		{
			name: "monitor", all: c.monitor, flags: []string{"since", "filter"}, about: "what happens in the broker, as it happens, until ^C",
			more: "The broker keeps the last 10,000 events. --since goes back: by a time, as 5m, or to behind the event of that number; 0 is all that is kept.\n" +
				"--filter wants some kinds only: " + strings.Join(broker.EventKinds(), ", ") + ",\n" +
				strings.Join(leaseKinds(), ", ") + ",\n" +
				"or the word that some begin with, as session. A line 'dropped' says how many events there was no time for. What happens to leases is told\n" +
				"while the network service runs, which is not started for that, and which keeps its last 4,096 changes.",
			examples: []string{"monitor", "monitor --since 5m --filter session_closed,denied", "monitor --since 0 --json"},
		},
		{
			name: "explain", usage: "[CODE]", all: c.explainAll, one: c.explain, takes: aCode, about: "what an error or the end of a session means, and what to do",
			examples: []string{"explain", "explain over_quota"},
		},
		{
			name: "completion", usage: "bash|zsh|fish", one: c.completion, takes: aShell, about: "a script that has the shell complete commands and names",
			examples: []string{
				"completion bash >/usr/share/bash-completion/completions/brokerctl", "completion zsh >/usr/share/zsh/site-functions/_brokerctl",
				"completion fish >/usr/share/fish/vendor_completions.d/brokerctl.fish",
			},
		},
		{
			name: "shutdown", all: c.shutdown, flags: []string{"leave-instances"}, patience: longPatience,
			about:    "stop the broker, and what it has started; done when its socket is free again",
			more:     "Only root and the broker's own user may. Sessions between others end only as their services are stopped.",
			examples: []string{"shutdown", "shutdown --leave-instances"},
		},
	}, c.benchVerbs(), []verb{
		{name: "version", all: c.version, about: "the version of this program", examples: []string{"version"}},
		{name: "help", usage: "[COMMAND]", words: c.help, about: "what a command does, and its flags; as COMMAND --help", examples: []string{"help session list", "help service"}},
	})
}
