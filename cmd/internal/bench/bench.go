// Package bench measures what a broker and its sessions cost, beside the same work on a raw Unix socket, and of a stream on plain yamux, in the same run.
//
// All is real: the broker, the service and the raw peer are processes of their own. What is compared takes turns, five rounds of it, as absolute times
// drift from hour to hour. The figures are medians of the rounds, and the ratios medians of what each round says.
//
// The service and the raw peer are this same program run again. So whatever imports this package can be run as one of them, by the argv[0] "fairlead-bench".
package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// rounds is how often each thing is measured.
const rounds = 5

// Bounds of the options. They keep a mistyped one from taking the machine.
const (
	maxTime     = time.Minute
	maxCount    = 10_000_000
	maxPayload  = wire.MaxLarge - 1024 // the value around the bytes is some bytes long, too
	maxCallers  = 1024
	maxSessions = 100_000
	maxHeld     = 1_000_000
)

// Options say what to measure. Those that a bench has no use for are ignored.
type Options struct {
	// Socket is the path of the broker's socket; empty: a private one, with a network of its own, is started for the run.
	Socket string
	// Brokerd is the program that is then started.
	Brokerd string
	// Time is how long each thing is measured in all rounds together, and Count how often it is done. Where Count is not zero it decides.
	Time  time.Duration
	Count int
	// Payload is the bytes of a call's request and of its reply, or of one write to a stream.
	Payload int
	// Callers work at once.
	Callers int
	// Sessions are shared by the callers, or idle.
	Sessions int
	// Pause is how long each caller rests before a call.
	Pause time.Duration
	// Network is the one to lease from; empty: the default one.
	Network string
	// Held is how many leases others hold meanwhile.
	Held int
	// Leased has each idle session hold a lease of the network service.
	Leased bool
	// Progress is told what is being done. Nil: nobody is.
	Progress func(string)
}

// Check fails where an option is out of bounds, and names its flag of brokerctl.
func (o Options) Check() error {
	for _, b := range []struct {
		flag             string
		value, low, high int
	}{
		{"count", o.Count, 0, maxCount},
		{"payload", o.Payload, 1, maxPayload},
		{"callers", o.Callers, 0, maxCallers},
		{"sessions", o.Sessions, 1, maxSessions},
		{"held", o.Held, 0, maxHeld},
	} {
		if b.value < b.low || b.value > b.high {
			return fmt.Errorf("--%s %d: want %d to %d", b.flag, b.value, b.low, b.high)
		}
	}
	if o.Time < time.Millisecond || o.Time > maxTime {
		return fmt.Errorf("--time %v: want 1ms to %v", o.Time, maxTime)
	}
	if o.Pause < 0 || o.Pause > maxTime {
		return fmt.Errorf("--pause %v: want 0s to %v", o.Pause, maxTime)
	}
	return nil
}

// Settings are the options that shape the figures, as they are printed.
type Settings struct {
	Payload  int           `json:"payload,omitempty"`
	Callers  int           `json:"callers"`
	Sessions int           `json:"sessions,omitempty"`
	Pause    time.Duration `json:"pause"`
	Held     int           `json:"held"`
	Rounds   int           `json:"rounds"`
}

// A Result is what a bench has measured beside a raw socket.
type Result struct {
	Version  int      `json:"version"`
	Bench    string   `json:"bench"`
	Settings Settings `json:"settings"`
	Raw      Figures  `json:"raw"`
	Fairlead Figures  `json:"fairlead"`
	Ratio    Ratio    `json:"ratio"`
	// Yamux is plain yamux at the same work, beside raw, and RatioYamux says how Fairlead stands to it. Nil but of a stream.
	Yamux      *Row   `json:"yamux,omitempty"`
	RatioYamux *Ratio `json:"ratio_yamux,omitempty"`
	// Rows are what else was measured in the same rounds.
	Rows []Row `json:"rows"`
	// BrokerCPU is what the broker's process has used meanwhile, in steps of 10 ms; nil where it is not measured.
	BrokerCPU *time.Duration `json:"broker_cpu,omitempty"`
}

// A Row is one thing that was measured. Ratio says how it stands to the thing that Of names, and is nil where that is nothing; RatioYamux how it stands to plain
// yamux at the same work, and is nil where that is not measured.
type Row struct {
	Name string `json:"name"`
	Figures
	Of         string `json:"of,omitempty"`
	Ratio      *Ratio `json:"ratio,omitempty"`
	RatioYamux *Ratio `json:"ratio_yamux,omitempty"`
}

// The names of the two rows that each Result has, and of one that some have.
const (
	rawName      = "raw"
	fairleadName = "fairlead"
	yamuxName    = "plain yamux"
)

// result makes a Result of what was measured. of says what is compared with what, beside fairlead with raw.
func (s *stage) result(name string, m measured, of map[string]string) *Result {
	r := &Result{Version: 1, Bench: name, Rows: []Row{}, Settings: Settings{Callers: s.Callers, Pause: s.Pause, Held: s.Held, Rounds: rounds}}
	for _, row := range m.rows(of) {
		switch row.Name {
		case rawName:
			r.Raw = row.Figures
		case fairleadName:
			r.Fairlead = row.Figures
		case yamuxName:
			r.Yamux = &row
		default:
			r.Rows = append(r.Rows, row)
		}
	}
	r.Ratio = m.ratio(fairleadName, rawName)
	return r
}

// onStage runs a bench with a stage of its own. Where ctx has ended, its cause is the error.
func onStage[R any](ctx context.Context, o Options, act func(*stage) (R, error)) (r R, err error) {
	s, err := newStage(ctx, o)
	if err == nil {
		r, err = act(s)
	}
	if ended := s.close(); err == nil {
		err = ended
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r, err
}
