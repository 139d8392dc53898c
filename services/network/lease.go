package network

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// ErrReleased is what Lease.Err says of a lease that was given back.
var ErrReleased = errors.New("the lease was released")

// withdrawWait bounds how long a failed Allocate tries to tell the service that nobody wants its lease.
const withdrawWait = time.Second

// A Request says what to lease. The zero Request asks for an address of the default network.
type Request struct {
	// Network is the name of the network; empty: DefaultNetwork.
	Network string
	// Hostname is leased with the address: a DNS name of at most 253 bytes (RFC 1123), in any case, that is unique in its network. Empty: none.
	Hostname string
	// Witness is a pidfd or a network namespace without whose end the lease does not end: see Lease.AddWitness. It stays the caller's. Nil: none.
	Witness *os.File
	// Aliases are further hostnames, at most MaxAliases, under the same rules. One that is there twice counts once.
	Aliases []string
	// Addresses are what to lease, at most one of each family; where one is held by somebody else, Allocate fails with wire.Conflict. A family that the network
	// has and that none is of gets any.
	Addresses []netip.Addr
	// Preferred are leased if they are free, and others if not; likewise.
	Preferred []netip.Addr
	// MAC is the hardware address to lease: unicast, and unique in the network. Nil: one is made.
	MAC net.HardwareAddr
	// Reclaim takes a lease back that no session holds any more. All other fields but Witness must be zero: the lease is as it was.
	Reclaim Claim
}

// A Claim proves that one held a lease. Who has it may take the lease back when its session is lost: it is to be kept as secret as what it is for. It may be
// written down, for a later process of the same uid.
type Claim struct {
	Lease  string `json:"lease"`  // the id
	Secret string `json:"secret"` // what the network service told with the lease
}

// A Lease is addresses, MAC and hostname on one network, held by the session that allocated it. Its methods may be called from any goroutine.
//
//	held ── Release, or the session's end ──▶ over
type Lease struct {
	// ID names the lease; no other lease of its network service has it, also after a restart.
	ID string
	// Network is the name of the network.
	Network string
	// Hostname is the name leased with the addresses, in lower case; empty if none was asked for.
	Hostname string
	// Addresses are the leased addresses, each with the length of its network's prefix.
	Addresses []netip.Prefix
	// Gateways are those of the prefixes that the addresses are of; there may be none.
	Gateways []netip.Addr
	// MAC is the hardware address, in the form of net.HardwareAddr. Unless it was asked for the service made it: locally administered and unicast.
	MAC string
	// Aliases are the further hostnames, in lower case.
	Aliases []string
	// MACGiven is whether MAC was asked for.
	MACGiven bool
	// MTU is the network's, in bytes.
	MTU int
	// DNS are the network's servers, and Search its list of domains to look names up in.
	DNS    []netip.Addr
	Search []string
	// Routes are the network's, beside the one by the gateways.
	Routes []Route
	// Broker is the path of the socket of the broker whose network service it is of. What a container's processes have in their environment as
	// FAIRLEAD_SOCKET, beside FAIRLEAD_ADDRESS, lets the service find them when its record is lost.
	Broker string

	secret  string
	session *client.Session
	done    chan struct{}
	forget  func() bool // stops waiting for the session's end

	mu  sync.Mutex
	err error
}

// A Route says by which address of a network a prefix is reached.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Allocate leases an address of each family that a network has. The session holds the lease, and the lease ends with it.
//
// Failures have the code wire.NotFound for an unknown network, wire.Conflict, naming the holder, for a hostname, an address or a MAC that is taken,
// wire.Exhausted for a network all of whose addresses are held by the living, wire.OverQuota for a limit of the session, the user or the network that is
// reached, wire.NotPermitted for an address that is the gateway's, reserved or in no range, wire.Malformed for one that no host of the network has,
// wire.Unavailable where addresses or the hostname are still kept from being given out, or the lease cannot be recorded, wire.Unsupported where the session was
// opened in a pid namespace that the network service cannot see into, those of Lease.AddWitness for the witness, or those of Session.Call. The dead are never in
// the way. A reclaim fails with wire.NotFound for a lease that is over or has never been, wire.Conflict for one that another session holds, naming that, or that
// is no longer whole because the networks have changed, and wire.NotPermitted for a wrong secret or another uid than the holder had. What is about to be free is waited for until shortly before ctx ends, at most 10 s if it has no deadline.
//
// A failed Allocate holds nothing. Where the network service was lost before its reply, it may have recorded the lease: that is withdrawn with the next Allocate or
// Reclaim of this process, on any session at the same broker, and again until one succeeds. The last MaxWithdraw such leases are remembered. Until then they are orphaned.
func Allocate(ctx context.Context, session *client.Session, request Request) (*Lease, error) {
	message := AllocateRequest{
		Network: request.Network, Hostname: request.Hostname, Witness: request.Witness, Token: newToken(),
		Aliases: request.Aliases, Addresses: texts(request.Addresses), Preferred: texts(request.Preferred), MAC: request.MAC.String(),
		Reclaim: request.Reclaim.Lease, Secret: request.Reclaim.Secret,
	}
	if request.Reclaim != (Claim{}) {
		message.Token = "" // a lease whose reply does not come in time stays the session's, and then its witnesses'
	}
	broker := brokerOf(session)
	message.Withdraw = unseen.of(broker)
	info, err := client.Call[LeaseInfo](ctx, session, MethodAllocate, message)
	if err == nil {
		unseen.done(message.Withdraw)
		return newLease(session, info), nil
	}
	// The service answers with a failure, or holds a lease whose reply did not come in time, or has recorded one and was lost before its reply.
	if e := wire.AsError(err); message.Token != "" && e.Sent && (e.Origin != wire.Peer || session.Context().Err() != nil) {
		unseen.add(unanswered{broker: broker, token: message.Token})
		withdraw(ctx, session, message.Token)
	}
	return nil, explain(err)
}

// explain says what to do about a witness that the session cannot carry: nothing else is unsupported before it has left.
func explain(err error) error {
	e := wire.AsError(err)
	if e == nil || e.Code != wire.Unsupported || e.Sent {
		return err
	}
	explained := *e
	explained.Text += ": a witness is one, so unset FAIRLEAD_LANE for this process and for the network service"
	return &explained
}

func texts(addrs []netip.Addr) []string {
	var list []string
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return list
}

func newToken() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// newLease makes a Lease of info, which has been checked.
func newLease(session *client.Session, info LeaseInfo) *Lease {
	l := &Lease{
		ID: info.ID, Network: info.Network, Hostname: info.Hostname, Aliases: info.Aliases, MAC: info.MAC, MACGiven: info.MACGiven, MTU: info.MTU,
		Search: info.Search, Broker: info.Broker, secret: info.Secret,
		session: session, done: make(chan struct{}),
	}
	for _, a := range info.Addresses {
		l.Addresses = append(l.Addresses, netip.MustParsePrefix(a))
	}
	for _, g := range info.Gateways {
		l.Gateways = append(l.Gateways, netip.MustParseAddr(g))
	}
	for _, d := range info.DNS {
		l.DNS = append(l.DNS, netip.MustParseAddr(d))
	}
	for _, r := range info.Routes {
		l.Routes = append(l.Routes, Route{To: netip.MustParsePrefix(r.To), Via: netip.MustParseAddr(r.Via)})
	}
	l.forget = context.AfterFunc(session.Context(), func() { l.over(session.End().Err()) })
	return l
}

// Claim returns the proof that one held the lease. It is zero if the network service told none.
func (l *Lease) Claim() Claim {
	if l.secret == "" {
		return Claim{}
	}
	return Claim{Lease: l.ID, Secret: l.secret}
}

// Done is closed when the lease is over: released, or its session has ended.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err says why the lease is over: ErrReleased, or a *wire.Error with the session's end. It is nil while the lease is held.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// over ends the lease on this side, once.
func (l *Lease) over(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// AddWitness makes the lease last until its session and the witness are both gone. That is the pidfd of a process, see pidfd_open(2), which os.Process.WithHandle
// and syscall.SysProcAttr have of a child; or a network namespace, see namespaces(7): /proc/PID/ns/net or the file that 'ip netns' mounts, opened. The session
// sends a copy: it stays the caller's, who may close it at once, and the network service keeps no namespace alive.
//
// A process must be a descendant of the one that opened the session. It may be in another pid namespace. A network namespace must not be that of the network
// service or of process 1. Unless the caller is root, it must belong to a user namespace of the caller's uid, or a descendant of the caller must be
// in it and the caller not. Adding one twice is no error; a lease has at most MaxWitnesses.
//
// Failures have the code wire.NotPermitted for others, wire.NotFound for a process that is gone, wire.Malformed for a descriptor of another kind,
// wire.OverQuota for one witness too many, wire.Unsupported on a session without a lane or for a namespace where the network service has no CAP_NET_ADMIN,
// or those of Session.Call.
func (l *Lease) AddWitness(ctx context.Context, witness *os.File) error {
	return explain(l.session.Call(ctx, MethodWitness, WitnessRequest{Lease: l.ID, Witness: witness}, nil))
}

// Release gives the lease back. Where it has a living witness, its address and hostname are not given out before that is gone. Releasing
// twice is no error, also at the same time, or after a deadline that left open whether the first had arrived. Failures are those of Session.Call.
func (l *Lease) Release(ctx context.Context) error {
	if errors.Is(l.Err(), ErrReleased) {
		return nil
	}
	err := l.session.Call(ctx, MethodRelease, LeaseRef{Lease: l.ID}, nil)
	if err != nil && !errors.Is(err, wire.NotFound) { // not found: it was released before
		return err
	}
	l.forget()
	l.over(ErrReleased)
	return nil
}
