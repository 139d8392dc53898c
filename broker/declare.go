package broker

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

// service returns the declared service of a name, or nil.
func (b *Broker) service(name string) *service {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.declared[name]
}

// owner returns the declared service of an endpoint, or nil.
func (b *Broker) owner(endpoint string) *service {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owners[endpoint]
}

// all returns the declared services, by name.
func (b *Broker) all() []*service {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.declared), func(x, y *service) int { return cmp.Compare(x.name, y.name) })
}

// endpointNames returns all endpoints that can be opened.
func (b *Broker) endpointNames() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := map[string]bool{}
	for e := range b.endpoints {
		names[e] = true
	}
	for e := range b.owners {
		names[e] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// declareFirst declares what the broker begins with. Files that are wrong are told and left out; what was declared in Go must be right.
func (b *Broker) declareFirst() error {
	defs, problems := b.read()
	for _, def := range defs {
		if err := def.Validate(); err != nil {
			return fmt.Errorf("declare a service: %w", err)
		}
	}
	if done := b.apply(defs, problems); b.conf.Load == nil && len(done.Problems) > 0 {
		return wire.Errorf(wire.Conflict, "declare a service: %s", done.Problems[0].Rule)
	}
	return nil
}

// read returns the definitions of the services, whole, and what is wrong with others.
func (b *Broker) read() (defs []servicefile.Service, problems []*servicefile.Problem) {
	defs = b.conf.Services
	if b.conf.Load != nil {
		defs, problems = b.conf.Load()
	}
	for n, def := range defs {
		defs[n] = def.WithDefaults()
	}
	return defs, problems
}

// takeUp takes up what an earlier broker has started, and starts what is to run from the beginning.
func (b *Broker) takeUp() {
	for _, s := range b.all() {
		s.adopt()
		s.load()
	}
}

// Reload reads the services anew, and says what has changed. What runs goes on as it was started: a change takes effect at the next start. It may be
// called at any time, and fails with wire.Unsupported where there is nothing to read.
func (b *Broker) Reload() (Reloaded, error) {
	if b.conf.Load == nil {
		return Reloaded{}, wire.Errorf(wire.Unsupported, "this broker has no service files")
	}
	b.reloading.Lock() // what is read last is applied last
	defer b.reloading.Unlock()
	if b.closed {
		return Reloaded{}, b.goodbye()
	}
	defs, problems := b.read()
	done := b.apply(defs, problems)
	done.Problems = append(done.Problems, b.readQuotas()...)
	for _, name := range done.Added {
		if s := b.service(name); s != nil {
			s.adopt()
			s.lift()
			s.load()
		}
	}
	b.events.add(Event{Kind: EventReload, Reload: &ReloadCounts{len(done.Added), len(done.Changed), len(done.Removed), len(done.Problems)}})
	b.log.Info("services reloaded", "added", len(done.Added), "changed", len(done.Changed), "removed", len(done.Removed), "problems", len(done.Problems))
	return done, nil
}

// apply makes the declared services those of defs, and of the files with problems what they were. A definition that conflicts with another is a problem, too.
func (b *Broker) apply(defs []servicefile.Service, problems []*servicefile.Problem) (done Reloaded) {
	skipped := map[string]bool{}
	for _, p := range problems {
		skipped[p.File] = true                // it may be a folder
		skipped[filepath.Base(p.File)] = true // a file stands in for those of its name in all folders
	}
	d := b.kept(skipped)
	for n := 0; n < len(defs); {
		p := d.add(defs[n])
		if p == nil {
			n++
			continue
		}
		problems = append(problems, p)
		skipped[p.File], skipped[filepath.Base(p.File)] = true, true
		defs = slices.Delete(defs, n, n+1)
		d, n = b.kept(skipped), 0 // what the file declared before stays, and others may conflict with that in turn
	}
	files := map[string]bool{}
	for _, p := range problems {
		files[p.File] = true
	}
	b.skipped.Store(int64(len(files)))
	for _, p := range problems {
		done.Problems = append(done.Problems, ReloadProblem{File: p.File, Line: p.Line, Key: p.Key, Rule: p.Rule})
		b.log.Error("service file skipped", "err", p)
	}
	b.declare(d, &done)
	return done
}

// A declaration is which services there are to be.
type declaration struct {
	wanted map[string]servicefile.Service // by name: those that are declared anew
	names  map[string]bool                // of these, and of those that stay as they are
	owners map[string]string              // of endpoints, by name
}

// kept begins a declaration with the services that stay as they are, because their files, or the folders of these, are skipped.
func (b *Broker) kept(skipped map[string]bool) declaration {
	d := declaration{map[string]servicefile.Service{}, map[string]bool{Endpoint: true}, map[string]string{Endpoint: Endpoint}}
	for _, s := range b.all() {
		if def := s.definition(); def.File != "" && !s.isRemoved() && (skipped[filepath.Base(def.File)] || skipped[filepath.Dir(def.File)]) {
			d.enter(def)
		}
	}
	return d
}

func (d declaration) enter(def servicefile.Service) {
	d.names[def.Name] = true
	for _, e := range def.Endpoints {
		d.owners[e] = def.Name
	}
}

// add declares a service, or says what of it another has.
func (d declaration) add(def servicefile.Service) *servicefile.Problem {
	if d.names[def.Name] {
		return &servicefile.Problem{File: def.File, Key: "name", Rule: "another service has the name " + def.Name}
	}
	for _, e := range def.Endpoints {
		if owner := d.owners[e]; owner != "" {
			return &servicefile.Problem{File: def.File, Key: "endpoints", Rule: "the endpoint " + e + " is the service " + owner + "'s"}
		}
	}
	d.wanted[def.Name] = def
	d.enter(def)
	return nil
}

// declare enters the services that are wanted, takes out those without a name among names, and gives the endpoints to their owners.
func (b *Broker) declare(d declaration, done *Reloaded) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.wanted)) {
		def := d.wanted[name]
		s := b.declared[name]
		switch {
		case s == nil:
			s = &service{b: b, name: name, changed: make(chan struct{}), file: recordFile{path: filepath.Join(b.conf.Socket+".d", name+".json")}}
			b.declared[name] = s
			done.Added = append(done.Added, name)
		case !reflect.DeepEqual(s.definition(), def) || s.isRemoved():
			done.Changed = append(done.Changed, name)
		}
		b.counters.services.Add(name)
		b.counters.opens.Add(def.Endpoints...)
		s.reload(&def)
	}
	for _, name := range slices.Sorted(maps.Keys(b.declared)) {
		if s := b.declared[name]; !d.names[name] && !s.isRemoved() {
			done.Removed = append(done.Removed, name)
			s.reload(nil)
			if s.isOver() {
				delete(b.declared, name)
			}
		}
	}
	b.owners = map[string]*service{}
	for e, name := range d.owners {
		if s := b.declared[name]; s != nil {
			b.owners[e] = s
		}
	}
	for _, name := range done.Added { // it may have registered before there was a file
		s, i := b.declared[name], b.services[name]
		s.mu.Lock()
		if i != nil && !i.over() && covers(i.endpoints, s.def.Endpoints) {
			s.enterLocked(i, nil)
		}
		s.mu.Unlock()
	}
	for _, s := range b.declared { // what runs keeps what nobody else has, for its time
		for _, e := range s.wanted() {
			if b.owners[e] == nil {
				b.owners[e] = s
			}
		}
	}
}

// retired takes a service out that was removed while it had a life, and the endpoints of one that no longer has them.
func (b *Broker) retired(s *service) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.isOver() {
		return
	}
	endpoints := s.definition().Endpoints
	if s.isRemoved() {
		endpoints = nil
		if b.declared[s.name] == s {
			delete(b.declared, s.name)
		}
	}
	maps.DeleteFunc(b.owners, func(e string, owner *service) bool { return owner == s && !slices.Contains(endpoints, e) })
}

// startsAlike reports whether instances are started alike by two definitions. Who may do what is not of the start: it changes at once.
func startsAlike(a, b servicefile.Service) bool { return reflect.DeepEqual(ofStart(a), ofStart(b)) }

// ofStart is what a start goes by.
func ofStart(s servicefile.Service) servicefile.Service {
	s.Allow, s.File = servicefile.Allow{}, ""
	if len(s.Environment) == 0 {
		s.Environment = nil
	}
	if len(s.Limits) == 0 {
		s.Limits = nil
	}
	return s
}

// lift forgets that a command has stopped the service, whose file has come anew since.
func (s *service) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = nil
}

// load starts a service that is to run from the beginning, unless a command has stopped it.
func (s *service) load() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil || s.stopped != nil || len(s.def.Program) == 0 {
		return
	}
	cause := Cause{Kind: CauseLoad, At: wire.At(time.Now())}
	if !s.def.RunAtLoad && s.def.KeepAlive != servicefile.Always {
		cause.Kind = CauseKeepAlive
	}
	at := later(s.health.Suspended, s.health.next(s.def.ThrottleInterval))
	switch {
	case !s.def.RunAtLoad && !s.keptAliveLocked():
	case at.After(time.Now()):
		s.laterLocked(cause, at)
	default:
		s.startLocked(cause)
	}
}

func (s *service) isRemoved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

func (s *service) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life == nil
}

// wanted returns the endpoints that an instance of the service must serve.
func (s *service) wanted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil && s.life.locked {
		return s.life.def.Endpoints
	}
	return s.def.Endpoints
}

// cgroup returns the folder of an instance's cgroup, or nothing where there is none to be had. Brokers that share one have different names in it.
func (b *Broker) cgroup(service string, number int64) string {
	if b.cgroups == "" {
		return ""
	}
	h := fnv.New32a()
	h.Write([]byte(b.conf.Socket))
	return filepath.Join(b.cgroups, fmt.Sprintf("fairlead-%08x-%s-%d", h.Sum32(), service, number))
}
