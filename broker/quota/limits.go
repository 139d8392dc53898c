package quota

// A Kind is something of which a user may have so much.
type Kind int

// The kinds. A connection that is made counts against Opens and Connections, then as an open against Waiting until it is handed over, as a Session from then on, and against
// Descriptors until the instance has taken it up. One with the broker itself is also a BrokerSession, as the broker holds its memory and its descriptors.
const (
	Connections    Kind = iota // whose first frame has not come
	Waiting                    // opens that have not been handed over
	Sessions                   // that are opening or open, of the user as client
	BrokerSessions             // of these, those with the broker's own endpoint
	Registrations              // of instances that the broker has not started
	Descriptors                // that are handed over, and not yet taken up
	Opens                      // connections a second that are let in, with room for those of 2 s at once
	kinds
)

// A description is a kind in words.
type description struct {
	Key  string // in broker.toml
	Text string // of several
}

var descriptions = [kinds]description{
	Connections:    {"connections", "connections whose first frame has not come"},
	Waiting:        {"waiting", "opens that wait for an instance"},
	Sessions:       {"sessions", "sessions"},
	BrokerSessions: {"broker_sessions", "sessions with the broker itself"},
	Registrations:  {"registrations", "registered instances"},
	Descriptors:    {"descriptors", "connections on their way to an instance"},
	Opens:          {"opens_per_second", "connections a second"},
}

// String is the kind in the plural, for people.
func (k Kind) String() string { return descriptions[k].Text }

// Key is the key of the kind in broker.toml.
func (k Kind) Key() string { return descriptions[k].Key }

// Kinds returns all kinds.
func Kinds() (all []Kind) {
	for k := range kinds {
		all = append(all, k)
	}
	return all
}

// A Share is how much there is of each kind. 0 Opens are any number; of any other kind 0 are none.
type Share [kinds]int

// Limits say how much each user may have.
type Limits struct {
	Own      Share            // root, and the broker's own user: each
	Others   Share            // every other user
	Together Share            // all others together
	Users    map[uint32]Share // those that have another share than these say
}

// Defaults returns limits that an ordinary user does not meet. Those of Opens are some hundred times what a login or the start of a container engine needs; a user who meets
// one is told when to ask again, and the client library does. A BrokerSession can be made to hold some 6 MiB of the broker's memory, see wire/session.
func Defaults() Limits {
	return Limits{
		Own:      Share{Connections: 1024, Waiting: 2048, Sessions: 100_000, BrokerSessions: 10_000, Registrations: 10_000, Descriptors: 4096, Opens: 100_000},
		Others:   Share{Connections: 64, Waiting: 128, Sessions: 2000, BrokerSessions: 32, Registrations: 64, Descriptors: 128, Opens: 200},
		Together: Share{Connections: 512, Waiting: 1024, Sessions: 50_000, BrokerSessions: 256, Registrations: 1024, Descriptors: 1024},
	}
}

// share returns a user's share.
func (l *Limits) share(uid, own uint32) Share {
	if s, known := l.Users[uid]; known {
		return s
	}
	if uid == 0 || uid == own {
		return l.Own
	}
	return l.Others
}

// Within returns limits with which the others together, but for the instances that a rule lets them register, leave at least half of so many descriptors to the broker, its instances
// and its operators: RLIMIT_NOFILE.
// What a connection costs the broker before it is handed over is two of them, for the socket and the peer's pidfd, and for a moment two more; a session with the broker itself costs
// two for as long as it lasts.
func (l Limits) Within(files int) Limits {
	l.Own = l.Own.within(files / 4)
	l.Others = l.Others.within(files / 24)
	l.Together = l.Together.within(files / 12)
	users := map[uint32]Share{}
	for uid, s := range l.Users {
		users[uid] = s.within(files / 4)
	}
	l.Users = users
	return l
}

// within returns a share with at most so many places of each kind that holds descriptors of the broker's, and at least two. Those on their way are no longer the broker's, but a broker
// that is not root's may have no more of them, see unix(7).
func (s Share) within(places int) Share {
	for _, k := range []Kind{Connections, Waiting, BrokerSessions, Descriptors} {
		s[k] = min(s[k], max(2, places))
	}
	return s
}
