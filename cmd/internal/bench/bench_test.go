package bench_test

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/cmd/internal/bench"
)

// hundred returns so many times as a round, of 1 to 100 ms times scale.
func hundred(scale time.Duration) bench.Round {
	var r bench.Round
	for i := range 100 {
		r.Took = append(r.Took, time.Duration(100-i)*time.Millisecond*scale)
	}
	r.Elapsed = time.Second * scale
	return r
}

func TestFiguresAreMediansOfTheRoundsAndTheMaxIsOfAll(t *testing.T) {
	rows := bench.Rows([]string{"raw", "fairlead"}, map[string][]bench.Round{
		"raw":      {hundred(1), hundred(1), hundred(1), hundred(10), hundred(1)},
		"fairlead": {hundred(2), hundred(3), hundred(1), hundred(40), hundred(4)},
	}, map[string]string{"fairlead": "raw"})
	want := bench.Figures{P50: 150 * time.Millisecond, P90: 270 * time.Millisecond, P99: 297 * time.Millisecond, Max: 4 * time.Second, Rate: 33, Count: 500}
	if rows[1].Figures != want {
		t.Errorf("%+v, want %+v", rows[1].Figures, want)
	}
	// The rounds say 2, 3, 1, 4 and 4.
	if want := (bench.Ratio{P50: 3, P90: 3, P99: 3, Max: 3, Rate: 0.333}); *rows[1].Ratio != want {
		t.Errorf("%+v, want %+v", *rows[1].Ratio, want)
	}
	if rows[0].Ratio != nil || rows[0].Of != "" {
		t.Errorf("raw is compared with %q", rows[0].Of)
	}
}

// The names in the JSON are a contract: docs/operating.md. Fields may be added.
func TestTheJSONIsAsItsReadersKnowIt(t *testing.T) {
	figures, ratio, cpu, heap := bench.Figures{1, 2, 3, 4, 5, 6}, bench.Ratio{1, 2, 3, 4, 5}, 20*time.Millisecond, 512.25
	for path, value := range map[string]any{
		"testdata/lease.json": bench.Result{
			Version: 1, Bench: "lease", Settings: bench.Settings{Payload: 64, Callers: 1, Sessions: 2, Pause: time.Millisecond, Held: 3, Rounds: 5},
			Raw: figures, Fairlead: figures, Ratio: ratio, BrokerCPU: &cpu,
			Rows: []bench.Row{{Name: "echo call", Figures: figures}, {Name: "allocate", Figures: figures, Of: "echo call", Ratio: &ratio}},
		},
		"testdata/stream.json": bench.Result{
			Version: 1, Bench: "stream", Settings: bench.Settings{Payload: 65536, Callers: 1, Rounds: 5},
			Raw: figures, Fairlead: figures, Ratio: ratio, Yamux: &bench.Row{Name: "plain yamux", Figures: figures, Of: "raw", Ratio: &ratio}, RatioYamux: &ratio,
			Rows: []bench.Row{{Name: "calls beside it", Figures: figures, Of: "raw calls beside it", Ratio: &ratio, RatioYamux: &ratio}},
		},
		"testdata/idle.json": bench.IdleResult{
			Version: 1, Bench: "idle", Sessions: 9, Leased: true, Rounds: 5,
			Raw: bench.Footprint{Memory: 1, Descriptors: 2, Heap: &heap}, Fairlead: bench.Footprint{Memory: 3, Descriptors: 4, Heap: &heap, Goroutines: &heap},
			Broker: bench.Footprint{Memory: 0.5}, Ratio: bench.FootprintRatio{Memory: 3, Descriptors: 2}, Rows: []bench.Row{},
		},
	} {
		got, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(path)
		if err != nil || string(got)+"\n" != string(want) {
			t.Errorf("%s: %v: the JSON is\n%s", path, err, got)
		}
	}
}

func TestOptionsThatAreOutOfBoundsAreNamed(t *testing.T) {
	good := bench.Options{Time: time.Second, Payload: 64, Callers: 1, Sessions: 1}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*bench.Options){
		"--count -1: want 0 to 10000000":       func(o *bench.Options) { o.Count = -1 },
		"--payload 4194304: want 1 to 4193280": func(o *bench.Options) { o.Payload = 4 << 20 },
		"--callers 1025: want 0 to 1024":       func(o *bench.Options) { o.Callers = 1025 },
		"--sessions 0: want 1 to 100000":       func(o *bench.Options) { o.Sessions = 0 },
		"--held 1000001: want 0 to 1000000":    func(o *bench.Options) { o.Held = 1_000_001 },
		"--time 2m0s: want 1ms to 1m0s":        func(o *bench.Options) { o.Time = 2 * time.Minute },
		"--pause -1ns: want 0s to 1m0s":        func(o *bench.Options) { o.Pause = -1 },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
