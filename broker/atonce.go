package broker

import (
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// openAtOnce hands a client's connection over where nobody has to be waited for: the client may open the endpoint, an instance serves that and takes the connection
// on the spot, and the answers are left to the instance. So nothing is handed from one goroutine to another, no deadline is set, and the connection is not
// watched. With false nothing has happened that others see, and the connection, which is closed else, takes the long way, which waits or tells why not. What the
// client is charged is what it is charged there. With true the client's handle is closed.
func (b *Broker) openAtOnce(a arrival, client party, f wire.Frame) bool {
	began := time.Now()
	var o wire.Open
	if f.Kind != wire.KindOpen || wire.Unmarshal(f.Body, &o) != nil || !relays(o) {
		return false
	}
	if !b.permits(client, b.owner(o.Endpoint), o.Endpoint) || b.quotas.Charge(client.UID, quota.Waiting) != nil {
		return false
	}
	defer b.quotas.Discharge(client.UID, quota.Waiting)
	i, s, _ := b.serving(o.Endpoint)
	if i == nil && s != nil {
		if i = s.getNow(o.Endpoint); i != nil {
			defer s.passed(nil)
		}
	}
	if i == nil || !b.takeNow(i, client, o, a) {
		return false
	}
	client.handle.Close()
	b.quotas.Discharge(a.peer.Uid, quota.Connections)
	b.counters.open(o.Endpoint, nil, began)
	return true
}

// takeNow hands a client's connection over if the instance takes it on the spot.
func (b *Broker) takeNow(i *instance, client party, o wire.Open, a arrival) bool {
	if !i.relays || b.quotas.Charge(client.UID, quota.Sessions, quota.Descriptors) != nil {
		return false
	}
	began := time.Now()
	h, _ := b.enter(i, client, o)
	h.Socket = a.file
	socket.PassRights(a.file, true)
	taken := i.control.TrySend(wire.MethodHandOver, h)
	if taken {
		b.counters.handOver(nil, began)
	} else {
		b.table.drop(h.Session)
	}
	return taken
}
