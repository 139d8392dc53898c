package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// serveCommands adds what is done to services.
func (b *Broker) serveCommands(mux *services.Mux) {
	command := func(method string, do func(context.Context, *service, Cause) error) {
		services.Handle(mux, method, func(ctx context.Context, r ServiceRequest) (ServiceDetails, error) {
			s, cause, err := b.commanded(ctx, r.Name, method)
			if err == nil {
				err = do(ctx, s, cause)
			}
			if err != nil {
				return ServiceDetails{}, err
			}
			return b.detailsOf(s), nil
		})
	}
	command(MethodStart, func(ctx context.Context, s *service, c Cause) error { return s.start(ctx, c) })
	command(MethodStop, func(ctx context.Context, s *service, c Cause) error { return s.stop(ctx, c) })
	command(MethodRestart, func(ctx context.Context, s *service, c Cause) error { return s.restart(ctx, c) })
	command(MethodReset, func(_ context.Context, s *service, _ Cause) error { s.reset(); return nil })
	command(MethodWait, func(ctx context.Context, s *service, _ Cause) error { return s.wait(ctx) })
	services.Handle(mux, MethodService, b.inspectService)
	services.Handle(mux, MethodReload, func(ctx context.Context, _ any) (Reloaded, error) {
		if err := b.mayAdminister(b.caller(ctx), nil, "reload the services"); err != nil {
			return Reloaded{}, err
		}
		return b.Reload()
	})
	services.HandleStreaming(mux, MethodLogs, b.logs)
	services.HandleStreaming(mux, MethodMonitor, b.monitor)
	services.Handle(mux, MethodShutdown, b.shutdown)
}

// commanded returns the service of a command, if the caller may administer it.
func (b *Broker) commanded(ctx context.Context, name, what string) (*service, Cause, error) {
	caller := b.caller(ctx)
	s := b.service(name)
	if err := b.mayAdminister(caller, s, what+" "+name); err != nil {
		return nil, Cause{}, err
	}
	if s == nil {
		return nil, Cause{}, b.noService(name)
	}
	return s, Cause{Kind: CauseCommand, At: wire.At(time.Now()), Client: &caller.Process}, nil
}

// noService says that no file declares a service, and which there are that are named alike.
func (b *Broker) noService(name string) error {
	var names []string
	for _, s := range b.all() {
		names = append(names, s.name)
	}
	e := wire.Errorf(wire.NotFound, "no service file declares %s", name)
	for _, i := range b.instances() {
		if i.service == name {
			e.Text = name + " has registered on its own, and no service file declares it: it is not the broker's to start and stop"
		}
	}
	e.Text += nearest.Question(name, names)
	if n := b.skipped.Load(); n > 0 {
		e.Text += fmt.Sprintf(" ('brokerd check' says why service files are skipped: %d)", n)
	}
	return e
}

// inspectService tells whoever administers a service all of it.
func (b *Broker) inspectService(ctx context.Context, r ServiceRequest) (ServiceDetails, error) {
	s := b.service(r.Name)
	if err := b.mayAdminister(b.caller(ctx), s, "inspect "+r.Name); err != nil {
		return ServiceDetails{}, err
	}
	if s != nil {
		return b.detailsOf(s), nil
	}
	for _, info := range b.serviceList() {
		if info.Name == r.Name {
			return ServiceDetails{ServiceInfo: info}, nil
		}
	}
	return ServiceDetails{}, b.noService(r.Name)
}

func (b *Broker) detailsOf(s *service) ServiceDetails {
	d, i := s.details()
	if i != nil {
		d.Sessions, _ = b.table.count(i)
	}
	return d
}
