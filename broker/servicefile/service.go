// Package servicefile reads service files: what the broker may start or have registered, as whom, how it is kept alive, and who may use it. Reading is
// strict: what is not understood is a Problem with file, line, key and rule, and a file with a problem declares nothing.
package servicefile

import (
	"strconv"
	"time"
)

// A Service is what one service file declares. A zero value of a field stands for its default, see WithDefaults.
type Service struct {
	Name             string            // as wire.CheckName has it
	Endpoints        []string          // at most wire.MaxEndpoints; empty: the name
	Program          []string          // argv, first an absolute path; empty: the broker never starts it, and others register it where Allow.Register lets them
	Environment      map[string]string // beside the broker's own; no name begins with FAIRLEAD_
	User, Group      string            // name or number; empty: those of the broker
	WorkingDirectory string            // absolute; empty: /
	Umask            uint32            // 1 to 0o777; 0: 0o022
	Nice             int               // -20 to 19
	Limits           map[string]Limit  // by resource, see Resource; setrlimit(2)
	RunAtLoad        bool
	KeepAlive        KeepAlive
	ThrottleInterval time.Duration // at most 1 h; 0: 10 s
	StartTimeout     time.Duration // at most 1 h; 0: 10 s
	StopTimeout      time.Duration // at most 1 h; 0: 20 s
	IdleExit         time.Duration // at most 24 h; 0: never
	HangTimeout      time.Duration // 1 s to 1 h; 0: never
	Stdout, Stderr   string        // empty: the instance's own log; Inherit: the broker's stderr; else an absolute path, appended to
	Allow            Allow
	File             string // the path it was read from; empty: built in
}

// Inherit as Stdout or Stderr has the output go where the broker's stderr goes.
const Inherit = "inherit"

// A KeepAlive says after which ends an instance is started again without being asked for.
type KeepAlive uint8

// The values of keep_alive. A crash is an end by a signal; a failure is a crash or an exit status that is not 0.
const (
	Never KeepAlive = iota
	Always
	OnFailure
	OnCrash
)

var keepAlives = []string{Never: "never", Always: "always", OnFailure: "on_failure", OnCrash: "on_crash"}

// String returns the value as a service file has it.
func (k KeepAlive) String() string {
	if int(k) < len(keepAlives) {
		return keepAlives[k]
	}
	return "keep_alive " + strconv.Itoa(int(k))
}

const (
	defaultDirectory = "/"
	defaultUmask     = 0o022
)

// A duration is what is known of a key that is one.
type duration struct {
	key      string
	of       func(*Service) *time.Duration
	standard time.Duration
	most     time.Duration
	zero     string // why a file may not say 0; empty: it may
}

var durations = []duration{
	{
		"throttle_interval", func(s *Service) *time.Duration { return &s.ThrottleInterval }, 10 * time.Second, time.Hour,
		"a program that ends at once would be started without a pause",
	},
	{
		"start_timeout", func(s *Service) *time.Duration { return &s.StartTimeout }, 10 * time.Second, time.Hour,
		"no instance registers in no time",
	},
	{
		"stop_timeout", func(s *Service) *time.Duration { return &s.StopTimeout }, 20 * time.Second, time.Hour,
		"an instance that does not stop must be killed some time",
	},
	{"idle_exit", func(s *Service) *time.Duration { return &s.IdleExit }, 0, 24 * time.Hour, ""},
	{"hang_timeout", func(s *Service) *time.Duration { return &s.HangTimeout }, 0, time.Hour, ""},
}

// WithDefaults returns the service with its defaults in place of zero values: the name as its endpoint, / as its working directory, a umask of 022, 10 s for
// throttle and start, and 20 s for the stop. What Read and Load return has them.
func (s Service) WithDefaults() Service {
	if len(s.Endpoints) == 0 {
		s.Endpoints = []string{s.Name}
	}
	if s.WorkingDirectory == "" {
		s.WorkingDirectory = defaultDirectory
	}
	if s.Umask == 0 {
		s.Umask = defaultUmask
	}
	for _, d := range durations {
		if v := d.of(&s); *v == 0 {
			*v = d.standard
		}
	}
	return s
}
