package servicefile

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	brokerEndpoint = "fairlead.broker" // broker.Endpoint: the broker serves it itself
	ourPrefix      = "FAIRLEAD_"       // of the environment that the broker sets
	minNice        = -20               // setpriority(2)
	maxNice        = 19
	leastHang      = time.Second
)

// A breach is a rule that a service breaks.
type breach struct {
	at    string // the key, perhaps with an index: program[0]
	needs string // another key that the rule speaks of; empty: none
	rule  string
}

// Validate checks a service by the rules that need no file and no look at the system, and with its defaults in place of zero values. It fails with
// wire.Malformed, and names every rule that is broken. Whether User and Group exist is for Account to say.
func (s Service) Validate() error {
	breaches := s.breaches()
	if len(breaches) == 0 {
		return nil
	}
	texts := make([]string, len(breaches))
	for i, b := range breaches {
		texts[i] = strictfile.KeyOf(b.at) + ": " + b.rule
	}
	return wire.Errorf(wire.Malformed, "service %s: %s", strictfile.Quote(s.Name), strings.Join(texts, "; "))
}

// breaches returns what is wrong with the service, in the order of the keys.
func (s Service) breaches() []breach {
	s = s.WithDefaults()
	var list rulebook
	list.names(s)
	list.program(s)
	list.paths(s)
	list.numbers(s)
	list.life(s)
	return list
}

// A rulebook collects breaches.
type rulebook []breach

func (r *rulebook) add(at, format string, args ...any) {
	*r = append(*r, breach{at: at, rule: fmt.Sprintf(format, args...)})
}

// names checks what the service is called, and its endpoints.
func (r *rulebook) names(s Service) {
	if err := checkName(s.Name); err != nil {
		r.add("name", "%s", nameRule(err))
		if len(s.Endpoints) == 1 && s.Endpoints[0] == s.Name {
			return // the endpoint is the name
		}
	}
	if len(s.Endpoints) > wire.MaxEndpoints {
		r.add("endpoints", "%d endpoints: a service has at most %d", len(s.Endpoints), wire.MaxEndpoints)
		return
	}
	for i, e := range s.Endpoints {
		if err := checkName(e); err != nil {
			r.add(strictfile.Index("endpoints", i), "%s", nameRule(err))
		} else if slices.Contains(s.Endpoints[:i], e) {
			r.add(strictfile.Index("endpoints", i), "%s is there twice", e)
		}
	}
}

func checkName(name string) error {
	if name == brokerEndpoint {
		return wire.Errorf(wire.Conflict, "%s is the broker's own", name)
	}
	return wire.CheckName(name)
}

// nameRule returns what is wrong with a name, which is shown behind its key.
func nameRule(err error) string { return strings.TrimPrefix(strictfile.TextOf(err), "endpoint name ") }

// program checks what is executed, and its environment.
func (r *rulebook) program(s Service) {
	if len(s.Program) > 0 && !filepath.IsAbs(s.Program[0]) {
		r.add("program[0]", "%s: the program is an absolute path, as PATH is not searched", strictfile.Quote(s.Program[0]))
	}
	for i, arg := range s.Program {
		if strings.Contains(arg, "\x00") {
			r.add(strictfile.Index("program", i), "NUL in an argument: the program would see what is before it")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		at := "environment." + strictfile.ShowKey(name)
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			r.add(at, "no name of a variable: it is not empty and has neither = nor NUL in it")
		case strings.HasPrefix(name, ourPrefix):
			r.add(at, "what begins with %s is the broker's to set", ourPrefix)
		case strings.Contains(s.Environment[name], "\x00"):
			r.add(at, "NUL in a value: the program would see what is before it")
		}
	}
}

// paths checks the folder and the files.
func (r *rulebook) paths(s Service) {
	for _, p := range []struct{ key, path string }{{"working_directory", s.WorkingDirectory}, {"stdout", s.Stdout}, {"stderr", s.Stderr}} {
		output := p.key != "working_directory"
		switch {
		case output && (p.path == "" || p.path == Inherit):
		case filepath.IsAbs(p.path) && !strings.Contains(p.path, "\x00"):
		case output:
			r.add(p.key, "%s: want an absolute path or %q", strictfile.Quote(p.path), Inherit)
		default:
			r.add(p.key, "%s: want an absolute path", strictfile.Quote(p.path))
		}
	}
}

// numbers checks umask, nice and limits.
func (r *rulebook) numbers(s Service) {
	if s.Umask > 0o777 {
		r.add("umask", "%#o: a umask is at most 0777", s.Umask)
	}
	if s.Nice < minNice || s.Nice > maxNice {
		r.add("nice", outOfRange, s.Nice, minNice, maxNice)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		at, l := "limits."+strictfile.ShowKey(name), s.Limits[name]
		if _, ok := Resource(name); !ok {
			r.add(at, "%s", noResource())
		} else if l.Soft > l.Hard {
			r.add(at, "%v: the soft limit is above the hard one", l)
		} else if name == "nofile" && l.Hard == Unlimited {
			r.add(at, "%v: the kernel has no unlimited nofile: at most what /proc/sys/fs/nr_open says", l)
		}
	}
}

// life checks when instances are started, ended and started again.
func (r *rulebook) life(s Service) {
	for _, d := range durations {
		if v := *d.of(&s); v < 0 {
			r.add(d.key, "%v: a duration is not negative", v)
		} else if v > d.most {
			r.add(d.key, "%v: at most %v", v, short(d.most))
		}
	}
	if int(s.KeepAlive) >= len(keepAlives) {
		r.add("keep_alive", "%d: want one of %s", s.KeepAlive, strings.Join(keepAlives, ", "))
	}
	if len(s.Program) == 0 {
		for _, k := range []struct {
			key   string
			given bool
		}{{"run_at_load", s.RunAtLoad}, {"keep_alive", s.KeepAlive != Never}, {"idle_exit", s.IdleExit != 0}} {
			if k.given {
				*r = append(*r, breach{at: k.key, needs: "program", rule: "needs a program: without one the broker neither starts nor ends an instance"})
			}
		}
	}
	if s.HangTimeout > 0 && s.HangTimeout < leastHang {
		r.add("hang_timeout", "%v: at least %v, or a machine that is loaded is taken for a hang", s.HangTimeout, leastHang)
	}
	if s.IdleExit != 0 && s.KeepAlive == Always {
		*r = append(*r, breach{at: "idle_exit", needs: "keep_alive", rule: "does not go with keep_alive = \"always\": it would be started again at once"})
	}
}

const outOfRange = "%d: want %d to %d"

func noResource() string {
	return "no such resource: want one of " + strings.Join(slices.Sorted(maps.Keys(resources)), ", ")
}

// short returns a duration of whole hours as one writes it.
func short(d time.Duration) string { return fmt.Sprintf("%dh", int(math.Round(d.Hours()))) }
