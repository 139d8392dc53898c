package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/cmd/internal/bench"
)

// tables make the tables of the document.
var tables = map[string]func(*runner) (string, error){
	"machine":   machine,
	"calls":     calls,
	"open":      opens,
	"streams":   streams,
	"leases":    leases,
	"memory":    memory,
	"sessions":  sessions,
	"endpoints": endpoints,
	"parts":     parts,
}

// run runs a bench, and returns what it says.
func run[Result any](r *runner, words string, more ...string) (result Result, err error) {
	args := append([]string{"bench"}, strings.Fields(words)...)
	args = append(args, "--time", r.time.String(), "--json")
	out, err := r.output(r.built("brokerctl"), append(args, more...)...)
	if err == nil {
		err = json.Unmarshal(out, &result)
	}
	return result, err
}

// A line is one bench, with its name in a table.
type line struct{ name, words string }

func machine(*runner) (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", err
	}
	cpu := "unknown"
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	for l := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(key) == "model name" {
			cpu = strings.TrimSpace(value)
			break
		}
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	one, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("Measured on %s: %s, %d processors, %s/%s, Linux %s, %s, load %s at the beginning.",
		time.Now().UTC().Format(time.DateOnly), cpu, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, unix.ByteSliceToString(name.Release[:]), runtime.Version(), one), nil
}

func calls(r *runner) (string, error) {
	t := table{{"", "raw p50", "fairlead p50", "p99", "max", "raw calls/s", "fairlead calls/s", "× raw p50", "× raw calls/s", "broker's CPU"}}
	for _, l := range []line{
		{"one caller", "call"},
		{"one caller, 10 ms between calls", "call --pause 10ms"},
		{"64 callers on one session", "call --callers 64"},
		{"64 callers on 8 sessions", "call --callers 64 --sessions 8"},
		{"one caller, 16 KiB", "call --payload 16384"},
		{"one caller, 1 MiB", "call --payload 1048576"},
	} {
		b, err := run[bench.Result](r, l.words)
		if err != nil {
			return "", err
		}
		t.row(l.name, short(b.Raw.P50), short(b.Fairlead.P50), short(b.Fairlead.P99), short(b.Fairlead.Max), count(b.Raw.Rate), count(b.Fairlead.Rate),
			times(b.Ratio.P50), times(b.Ratio.Rate), b.BrokerCPU.String())
	}
	return t.String(), nil
}

func opens(r *runner) (string, error) {
	t := openTable()
	for _, l := range []line{{"one client", "open"}, {"8 at once", "open --callers 8"}} {
		b, err := run[bench.Result](r, l.words)
		if err != nil {
			return "", err
		}
		openRow(&t, l.name, b)
	}
	return t.String(), nil
}

func openTable() table {
	return table{{"", "raw p50", "fairlead p50", "p99", "max", "raw/s", "fairlead/s", "× raw p50", "× raw/s"}}
}

func openRow(t *table, name string, b bench.Result) {
	t.row(name, short(b.Raw.P50), short(b.Fairlead.P50), short(b.Fairlead.P99), short(b.Fairlead.Max), count(b.Raw.Rate), count(b.Fairlead.Rate), times(b.Ratio.P50), times(b.Ratio.Rate))
}

func streams(r *runner) (string, error) {
	t := table{{"", "raw MB/s", "plain yamux MB/s", "fairlead MB/s", "× raw", "× plain yamux",
		"raw calls beside it: p50, p99", "plain yamux calls beside it: p50, p99", "calls beside it: p50, p99", "p50 × plain yamux"}}
	for _, l := range []line{{"alone", "stream"}, {"beside one caller", "stream --callers 1"}, {"beside 16 callers", "stream --callers 16"}, {"alone, writes of 1 KiB", "stream --payload 1024"}} {
		b, err := run[bench.Result](r, l.words)
		if err != nil {
			return "", err
		}
		if b.Yamux == nil || b.RatioYamux == nil {
			return "", errors.New("no plain yamux beside the stream")
		}
		beside, p50 := map[string]string{}, ""
		for _, row := range b.Rows {
			beside[row.Name] = short(row.P50) + ", " + short(row.P99)
			if row.RatioYamux != nil {
				p50 = times(row.RatioYamux.P50)
			}
		}
		t.row(l.name, megabytes(b.Raw.Rate), megabytes(b.Yamux.Rate), megabytes(b.Fairlead.Rate), times(b.Ratio.Rate), times(b.RatioYamux.Rate),
			beside[bench.RawBeside], beside[bench.YamuxBeside], beside[bench.Beside], p50)
	}
	return t.String(), nil
}

func leases(r *runner) (string, error) {
	t := table{{"leases held by others", "echo call p50", "allocate p50", "p99", "release p50", "allocate × echo call", "holder killed p50", "p99", "max", "raw process killed p50"}}
	for _, held := range []int{0, 10_000, 60_000} {
		b, err := run[bench.Result](r, fmt.Sprintf("lease --held %d", held))
		if err != nil {
			return "", err
		}
		rows := map[string]bench.Row{}
		for _, row := range b.Rows {
			rows[row.Name] = row
		}
		allocate, killed := rows["allocate"], rows["holder killed"]
		if allocate.Ratio == nil {
			return "", fmt.Errorf("no row allocate in %v", b.Rows)
		}
		t.row(count(float64(held)), short(rows["echo call"].P50), short(allocate.P50), short(allocate.P99), short(rows["release"].P50), times(allocate.Ratio.P50),
			short(killed.P50), short(killed.P99), short(killed.Max), short(rows["raw process killed"].P50))
	}
	return t.String(), nil
}

// most returns how many idle sessions this user's limit of descriptors allows, and n at most: a service has two for each, and some of its own.
func most(n int) (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return int(min(uint64(n), (limit.Max-min(limit.Max, 500))/2)), nil
}

func memory(r *runner) (string, error) {
	t := table{{"each of", "of", "memory", "heap and stacks", "goroutines", "descriptors"}}
	for _, words := range []string{"idle --sessions 1000", "idle --sessions 1000 --leased"} {
		b, err := run[bench.IdleResult](r, words)
		if err != nil {
			return "", err
		}
		service, what := "the service", fmt.Sprintf("%d sessions", b.Sessions)
		if b.Leased {
			service, what = "the network service", what+" with a lease"
		} else {
			t.row(fmt.Sprintf("%d connections", b.Sessions), "the raw peer", kib(&b.Raw.Memory), kib(b.Raw.Heap), "", number(&b.Raw.Descriptors))
		}
		t.row(what, service, kib(&b.Fairlead.Memory), kib(b.Fairlead.Heap), number(b.Fairlead.Goroutines), number(&b.Fairlead.Descriptors))
		t.row(what, "the broker", kib(&b.Broker.Memory), "", "", number(&b.Broker.Descriptors))
	}
	return t.String(), nil
}

func sessions(r *runner) (string, error) {
	t := table{{"idle sessions", "open and close p50", "× with 10", "call p50", "× with 10", "session list p50", "× with 10"}}
	for _, n := range []int{90, 990, 8990} {
		n, err := most(n)
		if err != nil {
			return "", err
		}
		b, err := run[bench.IdleResult](r, fmt.Sprintf("idle --sessions %d", n))
		if err != nil {
			return "", err
		}
		if len(b.Rows) != 6 {
			return "", fmt.Errorf("%d rows, want 6", len(b.Rows))
		}
		if len(t) == 1 {
			t.row("10", short(b.Rows[0].P50), "", short(b.Rows[1].P50), "", short(b.Rows[2].P50), "")
		}
		cells := []string{count(float64(n + 10))}
		for _, row := range b.Rows[3:] {
			cells = append(cells, short(row.P50), times(row.Ratio.P50))
		}
		t.row(cells...)
	}
	return t.String(), nil
}

// endpoints measures opens through brokers that know more and more service files.
func endpoints(r *runner) (string, error) {
	t := openTable()
	t[0][0] = "endpoints"
	for _, n := range []int{10, 1000, 10_000} {
		b, err := r.besideEndpoints(n)
		if err != nil {
			return "", err
		}
		openRow(&t, count(float64(n)), b)
	}
	return t.String(), nil
}

// besideEndpoints runs the bench of opens at a broker with so many service files, each with an endpoint.
func (r *runner) besideEndpoints(n int) (b bench.Result, err error) {
	folder, err := os.MkdirTemp(r.folder, "")
	if err != nil {
		return b, err
	}
	files := filepath.Join(folder, "services.d")
	if err := os.Mkdir(files, 0o755); err != nil {
		return b, err
	}
	for i := range n {
		text := fmt.Sprintf("name = \"com.example.s%d\"\nprogram = [\"/bin/true\"]\n", i)
		if err := os.WriteFile(filepath.Join(files, fmt.Sprintf("%d.toml", i)), []byte(text), 0o644); err != nil {
			return b, err
		}
	}
	socket := filepath.Join(folder, "s")
	brokerd := r.command(r.built("brokerd"), "serve", "--socket", socket, "--config-dir", folder)
	if err := brokerd.Start(); err != nil {
		return b, err
	}
	defer func() {
		_ = brokerd.Process.Signal(syscall.SIGTERM)
		_ = brokerd.Wait() // it has served; how it ends is no part of the figures
	}()
	if err := r.known(socket, n); err != nil {
		return b, err
	}
	return run[bench.Result](r, "open", "--socket", socket)
}

// known waits until a broker knows n services, beside its own.
func (r *runner) known(socket string, n int) error {
	var known struct{ Status struct{ Services int } }
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && r.ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		out, err := r.command(r.built("brokerctl"), "status", "--json", "--socket", socket).Output()
		if err != nil { // it does not answer yet
			continue
		}
		if err := json.Unmarshal(out, &known); err != nil {
			return err
		}
		if known.Status.Services >= n {
			return nil
		}
	}
	return fmt.Errorf("a broker with %d service files knows %d services", n, known.Status.Services)
}
