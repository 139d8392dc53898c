package broker

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// serveEndpoint enters the broker as the instance of its own endpoint.
func (b *Broker) serveEndpoint() (err error) {
	mux := services.NewMux()
	services.Handle(mux, MethodStatus, b.status)
	services.Handle(mux, MethodServices, b.listServices)
	services.HandleStreaming(mux, MethodSessions, b.listSessions)
	services.Handle(mux, MethodInspect, b.inspect)
	services.Handle(mux, MethodClose, b.close)
	b.serveCommands(mux)
	describe(mux)
	b.local, err = services.NewHost(services.Server{Endpoints: map[string]*services.Mux{Endpoint: mux}, Logger: b.log})
	if err != nil {
		return err
	}
	i := &instance{service: Endpoint, number: 1, mostTold: mostTold, believed: true, endpoints: []string{Endpoint}, process: b.self, local: b.local, since: b.started}
	b.services[Endpoint], b.endpoints[Endpoint] = i, i
	b.counters.opens.Add(Endpoint)
	b.work.Go(func() { b.takeNews(i) })
	return nil
}

// takeNews enters what the broker's own host has to tell into the table.
func (b *Broker) takeNews(i *instance) {
	for {
		news := b.local.Take()
		b.tell(i, news)
		for _, info := range news {
			if info.End != nil { // also of one that was not accepted
				b.forget(info.ID)
			}
		}
		select {
		case <-b.local.News():
		case <-b.ctx.Done():
			return
		}
	}
}

func (b *Broker) status(context.Context, any) (Status, error) {
	open, closed := b.table.count(nil)
	return Status{
		Version: b.conf.Version, PID: b.self.PID, UID: b.self.UID, Socket: b.conf.Socket, StartedAt: wire.At(b.started),
		Services: len(b.serviceList()), Instances: len(b.instances()), Open: open, Closed: closed,
		Denied: b.counters.refusals.Of(EventDenied), OverQuota: b.counters.refusals.Of(EventOverQuota), Skipped: int(b.skipped.Load()),
	}, nil
}

// listServices lists the services that the caller may open, register or administer. How an instance has ended is for who administers it.
func (b *Broker) listServices(ctx context.Context, _ any) (Services, error) {
	w, list := b.caller(ctx).who(), Services{}
	for _, info := range b.serviceList() {
		s := b.service(info.Name)
		if !b.sees(w, s) && info.Name != Endpoint {
			continue
		}
		if !b.administers(w, s) {
			info.Last = nil
		}
		list.Services = append(list.Services, info)
	}
	list.Skipped = int(b.skipped.Load())
	return list, nil
}

// serviceList returns the declared services and those that registered on their own.
func (b *Broker) serviceList() []ServiceInfo {
	var list []ServiceInfo
	for _, i := range b.instances() {
		if b.service(i.service) != nil {
			continue
		}
		info := ServiceInfo{Name: i.service, Endpoints: i.endpoints, State: ServiceRunning, PID: i.process.PID, Instance: i.number, StartedAt: wire.At(i.since)}
		info.Sessions, _ = b.table.count(i)
		list = append(list, info)
	}
	for _, s := range b.all() {
		info, i := s.info()
		if i != nil {
			info.Sessions, _ = b.table.count(i)
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b ServiceInfo) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.PID, b.PID)) })
	return list
}

// remember notes who is the client of a session with the broker's own endpoint, and charges that one for it. It fails with wire.OverQuota.
func (b *Broker) remember(session string, client party) error {
	if err := b.quotas.Charge(client.UID, quota.BrokerSessions); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.callers[session] = party{Process: client.Process, groups: client.groups}
	return nil
}

// forget lets go of what remember has noted and charged. It may be called for any session.
func (b *Broker) forget(session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, known := b.callers[session]; known {
		delete(b.callers, session)
		b.quotas.Discharge(p.UID, quota.BrokerSessions)
	}
}

// caller returns who makes a call on the broker's own endpoint.
func (b *Broker) caller(ctx context.Context) party {
	s := services.FromContext(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, known := b.callers[s.ID()]; known {
		return p
	}
	return party{Process: s.Peer()} // it is just ending
}

// find returns a session that the caller may see and close, and its instance while it lives.
func (b *Broker) find(ctx context.Context, id, what string) (Session, *instance, error) {
	s, i, err := b.table.find(id)
	if code := wire.CodeOf(err); code == wire.NotFound || code == wire.Malformed {
		e := wire.AsError(err)
		e.Text += b.alike(ctx, id)
		return Session{}, nil, e
	}
	if caller := b.caller(ctx); err == nil && s.Client.UID != caller.UID {
		err = b.mayAdminister(caller, b.owner(s.Endpoint), what+" of uid "+strconv.FormatUint(uint64(s.Client.UID), 10))
	}
	if err != nil {
		return Session{}, nil, err
	}
	return s, i, nil
}

// inspectWait bounds how long an instance has to say what it sees of a session.
const inspectWait = 5 * time.Second

// inspect asks the instance of an open session what it sees.
func (b *Broker) inspect(ctx context.Context, r SessionRequest) (Details, error) {
	s, i, err := b.find(ctx, r.ID, "inspect a session")
	if err != nil || i == nil {
		return Details{Session: s}, err
	}
	ctx, cancel := context.WithTimeout(ctx, inspectWait)
	defer cancel()
	var in wire.Inspection
	if i.local != nil {
		in, err = b.local.Inspect(s.ID)
	} else {
		err = i.control.Call(ctx, wire.MethodInspect, wire.SessionRef{Session: s.ID}, &in)
	}
	if wire.CodeOf(err) == wire.NotFound { // it has ended, and the news of that is on its way
		if s, _, err = b.table.find(s.ID); err == nil {
			return Details{Session: s}, nil
		}
	}
	if err != nil {
		return Details{}, err
	}
	return Details{Session: s, Inspection: &in}, nil
}

// closeWait bounds how long the close of a session waits for the news that it has ended.
const closeWait = 5 * time.Second

// close has the instance of an open session end it.
func (b *Broker) close(ctx context.Context, r SessionRequest) (Session, error) {
	s, i, err := b.find(ctx, r.ID, "close a session")
	if err == nil && i == nil {
		err = wire.Errorf(wire.NotFound, "session %s is closed already", s.ID)
	}
	if err != nil {
		return s, err
	}
	ref := wire.SessionRef{Session: s.ID, Text: cmp.Or(r.Text, "closed by an operator")}
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	if i.local != nil {
		err = b.local.Close(ctx, ref.Session, ref.Text)
	} else {
		err = i.control.Call(ctx, wire.MethodClose, ref, nil)
	}
	if err != nil {
		return s, err
	}
	end := wire.End{Code: wire.Interrupted, Origin: wire.Broker, Text: ref.Text}
	b.table.update(wire.SessionInfo{ID: s.ID, ClosedAt: time.Now().UnixNano(), End: &end}, i) // the instance's own news may be on its way
	s, _, err = b.table.find(s.ID)
	return s, err
}
