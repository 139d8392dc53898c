package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// serveEndpoint enters the broker as the instance of its own endpoint.
func (b *Broker) serveEndpoint() (err error) {
	mux := services.NewMux()
	services.Handle(mux, MethodStatus, b.status)
	services.Handle(mux, MethodServices, b.listServices)
	services.Handle(mux, MethodSessions, func(_ context.Context, r SessionsRequest) (Sessions, error) { return b.table.list(r), nil })
	services.Handle(mux, MethodInspect, b.inspect)
	services.Handle(mux, MethodClose, b.close)
	b.local, err = services.NewHost(services.Server{Endpoints: map[string]*services.Mux{Endpoint: mux}, Logger: b.log})
	if err != nil {
		return err
	}
	i := &instance{service: Endpoint, number: 1, endpoints: []string{Endpoint}, process: b.self, local: b.local, since: b.started}
	b.services[Endpoint], b.endpoints[Endpoint] = i, i
	b.work.Go(func() { b.takeNews(i) })
	return nil
}

// takeNews enters what the broker's own host has to tell into the table.
func (b *Broker) takeNews(i *instance) {
	for {
		b.tell(i, b.local.Take())
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
		Services: len(b.serviceList()), Instances: len(b.instances()), Open: open, Closed: closed, Denied: b.denied.Load(),
	}, nil
}

func (b *Broker) listServices(context.Context, any) (Services, error) {
	return Services{Services: b.serviceList()}, nil
}

// serviceList returns the declared services and those that registered on their own.
func (b *Broker) serviceList() []ServiceInfo {
	var list []ServiceInfo
	for _, i := range b.instances() {
		info := ServiceInfo{Name: i.service, Endpoints: i.endpoints, State: ServiceRunning, PID: i.process.PID, Instance: i.number, StartedAt: wire.At(i.since)}
		info.Sessions, _ = b.table.count(i)
		list = append(list, info)
	}
	for _, s := range b.declared {
		if slices.ContainsFunc(list, func(i ServiceInfo) bool { return i.Name == s.Name }) {
			continue
		}
		info := ServiceInfo{Name: s.Name, Endpoints: s.Endpoints, State: ServiceStopped}
		s.mu.Lock()
		if s.starting != nil {
			info.State = ServiceStarting
		}
		s.mu.Unlock()
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b ServiceInfo) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.PID, b.PID)) })
	return list
}

// inspect asks the instance of an open session what it sees.
func (b *Broker) inspect(ctx context.Context, r SessionRequest) (Details, error) {
	s, i, err := b.table.find(r.ID)
	if err != nil || i == nil {
		return Details{Session: s}, err
	}
	var in wire.Inspection
	if i.local != nil {
		in, err = b.local.Inspect(s.ID)
	} else {
		err = i.control.Call(ctx, wire.MethodInspect, wire.SessionRef{Session: s.ID}, &in)
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
	s, i, err := b.table.find(r.ID)
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
