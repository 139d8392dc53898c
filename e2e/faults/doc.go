// Package faults is the fault machine: real processes do real work through a real broker while a plan kills, stops, floods and starves them, and every promise
// is checked from the outside.
//
// # The plan
//
// Time is cut into rounds. NewRound draws the faults of a round, with their moments, targets and lengths, from the machine's seed and the round's number and from
// nothing else: a seed that failed is replayed by its number. Which process a rank among the living stands for, and what that is doing, is the machine's.
//
//	kill      SIGKILL: brokerd, an instance, a keeper, the network service, a client's process, a runtime, a container's init, a service that registers by itself
//	stop      SIGSTOP, and SIGCONT after a while
//	delay     SIGSTOP and SIGCONT in turns: a process that has a tenth of its time
//	starve    RLIMIT_NOFILE of a process is what it has open, and a few more, for a while
//	flood     hostile connections, half of them of another uid: wrong frames, half frames, a byte now and then, opens that never read, garbage and pings in a session
//	command   an operator's: reload of changed files, restart, stop, reset, close of a session, shutdown that leaves the instances
//
// # The actors
//
//   - A crowd is a process of many clients. Callers open sessions with the services, make calls, send one-way messages and flush them, stream, and pass
//     descriptors. Lessees lease addresses, some with a process of theirs as witness; what the network service's death takes from them they take back or release.
//   - A worker is an instance of a service: started on demand, kept alive, ended when idle; or a stranger, which registers by itself and again.
//   - A runtime is broker-run with a resident in its container.
//   - brokerd and the network service are the product's own programs.
//
// This very program plays crowds, workers and residents: Play. Who is killed is started again at once.
//
// # What is checked
//
// All the time, by who sees it first (see Finding):
//
//   - An address has one user: who gets one locks a file of its name until it lets go of it or ends, and so does a witness. The kernel says who comes second.
//   - A service has one instance, likewise.
//   - One-way messages of a session come in order, each once, and before any later call.
//   - A reply is that of its call; a call comes back; a descriptor that was passed is closed by whoever got it; a failure has a code that the faults explain.
//   - No program panics, and none ends that nothing has ended.
//
// At the end of each round the faults stop, and then:
//
//   - Everything recovers: all clients get on, and soon without a failure.
//   - The ledgers, which outlive a SIGKILL, agree: what was answered was executed once, what was not sent not at all, and nothing twice.
//   - While the clients hold what they have, the tables of the broker and the network service have exactly that, and the table of services is what /proc shows.
//   - When all have let go, there is no session, lease, witness or container, and brokerd, the network service and the instances have as many
//     descriptors and goroutines as before the first fault. Programs that cannot be asked for their goroutines are ended by SIGQUIT, which tells.
//   - No process, file or folder is there that has no owner.
//
// A machine that cannot fail is worth nothing: Config.Break has an actor break one promise, and tests show that its check tells.
package faults
