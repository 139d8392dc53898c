package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/metrics"
	"github.com/fairlead-dev/fairlead/internal/doctable"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// metrics is where a place's brokers serve their metrics.
func (p *place) metrics() string { return "unix:" + filepath.Join(p.dir, "m") }

// scrape returns what a broker shows.
func (p *place) scrape() (string, metrics.Values) {
	p.t.Helper()
	text, err := metrics.Scrape(within(p.t), p.metrics())
	if err != nil {
		p.t.Fatal(err)
	}
	values, err := metrics.Parse(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return text, values
}

// busy has a broker that has done some of all that is counted: a service, a lease, an open that is refused.
func busy(t *testing.T) (*place, *daemon) {
	p := newPlace(t)
	p.echo("com.example.echo", "")
	d := p.serve("--metrics", p.metrics())
	s := p.dial(network.Endpoint)
	if _, err := network.Allocate(within(t), s, network.Request{Hostname: "web"}); err != nil {
		t.Fatal(err)
	}
	p.dial("com.example.echo").Close()
	if _, err := client.Dial(within(t), "com.example.made.up", p.options()); !errors.Is(err, wire.UnknownEndpoint) {
		t.Error(err)
	}
	return p, d
}

func TestTheMetricsPassPrometheusOwnLinterAndTheDocumentationHasEach(t *testing.T) {
	p, d := busy(t)
	text, _ := p.scrape()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	doctable.Holds(t, "../../docs/operating.md", "metrics", tableOf(text))
	d.stop()
}

// tableOf returns the documentation's table of what a scrape shows of the project's own.
func tableOf(text string) string {
	kinds, helps, labels := map[string]string{}, map[string]string{}, map[string]map[string]bool{}
	histogram := regexp.MustCompile(`_(bucket|sum|count)$`)
	label := regexp.MustCompile(`([a-z]+)="`)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if help, ok := strings.CutPrefix(line, "# HELP fairlead_"); ok {
			name, about, _ := strings.Cut(help, " ")
			helps["fairlead_"+name], labels["fairlead_"+name] = about, map[string]bool{}
		} else if kind, ok := strings.CutPrefix(line, "# TYPE fairlead_"); ok {
			name, kind, _ := strings.Cut(kind, " ")
			kinds["fairlead_"+name] = kind
		} else if strings.HasPrefix(line, "fairlead_") {
			name, _, _ := strings.Cut(strings.Fields(line)[0], "{")
			if kinds[name] == "" {
				name = histogram.ReplaceAllString(name, "")
			}
			for _, found := range label.FindAllStringSubmatch(line, -1) {
				if found[1] != "le" {
					labels[name][found[1]] = true
				}
			}
		}
	}
	var table strings.Builder
	table.WriteString("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(helps)) {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", name, kinds[name], strings.Join(slices.Sorted(maps.Keys(labels[name])), ", "), helps[name])
	}
	return table.String()
}

func TestTheMetricsAreWhatWasDoneAndLabelsHaveABound(t *testing.T) {
	p, d := busy(t)
	want := map[string]float64{
		`fairlead_broker_opens_total{endpoint="com.example.echo",outcome="ok"}`:         1,
		`fairlead_broker_opens_total{endpoint="fairlead.network",outcome="ok"}`:         1,
		`fairlead_broker_opens_total{endpoint="other",outcome="unknown_endpoint"}`:      1,
		`fairlead_broker_sessions_open{endpoint="fairlead.network"}`:                    1,
		`fairlead_broker_service_starts_total{cause="open",service="com.example.echo"}`: 1,
		`fairlead_broker_service_starts_total{cause="open",service="fairlead.network"}`: 1,
		`fairlead_broker_services{state="running"}`:                                     2,
		`fairlead_broker_handover_duration_seconds_count`:                               3, // the network service has asked the broker for its clients
		`fairlead_network_up`: 1,
		`fairlead_network_allocations_total{network="default",outcome="ok"}`:               1,
		`fairlead_network_addresses{network="default",state="held"}`:                       1,
		`fairlead_network_addresses{network="default",state="free"}`:                       252,
		`fairlead_network_allocation_duration_seconds_bucket{network="default",le="+Inf"}`: 1,
	}
	var text string
	var v metrics.Values
	agree := func() bool { // who was served may know that before it is counted
		text, v = p.scrape()
		return !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(key string) bool { got, found := v[key]; return !found || got != want[key] })
	}
	if !soon(agree) {
		for key, want := range want {
			t.Errorf("%s is %v, want %v", key, v[key], want)
		}
	}
	for _, own := range []string{"made.up", "web", fmt.Sprintf("%q", fmt.Sprint(d.cmd.Process.Pid)), p.dir} {
		for key := range v {
			if strings.HasPrefix(key, "fairlead_") && strings.Contains(key, own) {
				t.Errorf("%s has a label without a bound", key)
			}
		}
	}
	if again, _ := p.scrape(); strings.Count(again, "\nfairlead_") != strings.Count(text, "\nfairlead_") {
		t.Errorf("a scrape shows more than the one before:\n%s", again)
	}
	d.stop()
}

func TestAScrapeStartsNothingAndWaitsForNobody(t *testing.T) {
	p := newPlace(t)
	d := p.serve("--metrics", p.metrics())
	_, v := p.scrape()
	if up, shown := v["fairlead_network_up"]; up != 0 || !shown || v.Sum("fairlead_broker_services", `state="stopped"`) != 1 {
		t.Errorf("without a network service: up %v, %t", up, shown)
	}
	if now := p.inspect(network.Endpoint); now.Starts != 0 || now.State != broker.ServiceStopped {
		t.Errorf("a scrape has started it: %+v", now)
	}
	s := p.dial(network.Endpoint)
	if !soon(func() bool {
		_, v := p.scrape()
		return v.Sum("fairlead_broker_opens_total", `endpoint="fairlead.network"`) == 1
	}) {
		t.Error("the open is not counted")
	}
	instance := p.inspect(network.Endpoint)
	freeze(t, instance.PID)
	for range 2 { // one visit is on its way, and there is no second
		if _, v := p.scrape(); v["fairlead_network_up"] != 0 || v["fairlead_network_allocations_total"] != 0 || v.Sum("fairlead_broker_opens_total", `endpoint="fairlead.network"`) != 1 {
			t.Error("of a network service that is stopped there is more than that")
		}
	}
	if err := syscall.Kill(instance.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !soon(func() bool { _, v := p.scrape(); return v["fairlead_network_up"] == 1 }) {
		t.Error("the network service goes on, and is not up again")
	}
	s.Close()
	d.stop()
	if _, err := metrics.Scrape(within(t), p.metrics()); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a broker that has stopped: %v, want no socket", err)
	}
}

// freeze stops a process, and returns when all its threads have stopped.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if !soon(func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		return !slices.ContainsFunc(threads, func(path string) bool {
			stat, _ := os.ReadFile(path)
			return !strings.Contains(string(stat), ") T ")
		})
	}) {
		t.Fatalf("process %d has not stopped", pid)
	}
}

func TestABrokerThatWasKilledLeavesTheNextItsPlaceForMetrics(t *testing.T) {
	p := newPlace(t)
	d := p.serve("--metrics", p.metrics())
	d.cmd.Process.Kill()
	<-d.done
	d = p.serve("--metrics", p.metrics())
	p.scrape()
	other := filepath.Join(p.dir, "other.sock")
	second := exec.CommandContext(t.Context(), binary, "serve", "--socket", other, "--config-dir", p.dir, "--metrics", p.metrics())
	if out, err := second.CombinedOutput(); second.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "somebody listens at") {
		t.Errorf("another broker with the same place: %v\n%s", err, out)
	}
	p.scrape()
	d.stop()
}

func TestMetricsAtAnAddressAreBoundedAndAPublicOneWarns(t *testing.T) {
	p := newPlace(t)
	d := p.serve("--metrics", "127.0.0.1:0")
	address, _ := d.await("metrics are served", 1)["socket"].(string)
	if _, err := metrics.Scrape(within(t), address); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		method, path string
		header       int // bytes
		status       int
	}{
		{http.MethodGet, "/metrics", 0, http.StatusOK},
		{http.MethodHead, "/metrics", 0, http.StatusOK},
		{http.MethodPost, "/metrics", 0, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", 0, http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", 0, http.StatusNotFound},
		{http.MethodGet, "/metrics", 64 << 10, http.StatusRequestHeaderFieldsTooLarge},
	} {
		if got, err := status(within(t), test.method, "http://"+address+test.path, test.header); got != test.status || err != nil {
			t.Errorf("%+v: %d, %v", test, got, err)
		}
	}
	d.stop()
	if len(d.log("whoever reaches")) > 0 {
		t.Error("it warns of an address of this machine's own")
	}
	d = p.serve("--metrics", ":0")
	if line := d.await("metrics are served to whoever reaches the address", 1); line["level"] != "WARN" {
		t.Errorf("an address that all reach: %v", line)
	}
	d.stop()
}

func TestConnectionsThatAreHeldKeepNobodyFromAScrape(t *testing.T) {
	p := newPlace(t)
	d := p.serve("--metrics", p.metrics())
	for _, whole := range []bool{true, false} { // what is sent is a request, which is answered
		for range 64 { // the bound of connections at a time
			conn, err := net.Dial("unix", strings.TrimPrefix(p.metrics(), "unix:"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "GET /none HTTP/1.1\r\nHost: x\r\n"); err != nil {
				t.Fatal(err)
			}
			if !whole {
				continue
			}
			if _, err := io.WriteString(conn, "\r\n"); err != nil {
				t.Fatal(err)
			}
			if answer, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || answer.StatusCode != http.StatusNotFound {
				t.Fatalf("%v, %v", answer, err)
			}
		}
		p.scrape()
	}
	d.stop()
}

// status makes a request, and returns the status of the answer.
func status(ctx context.Context, method, url string, header int) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err
	}
	if header > 0 {
		r.Header.Set("X-Long", strings.Repeat("x", header))
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// The guard is the Limiter of failures in cmd/internal/metrics.
func TestWhoGoesBeforeTheAnswerFillsNoLog(t *testing.T) {
	p, d := busy(t)
	began := time.Now()
	for range 100 {
		conn, err := net.Dial("unix", filepath.Join(p.dir, "m"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
	d.await("broken pipe", 1)
	d.stop()
	most := 10 * (int(time.Since(began)/time.Second) + 2)
	if n := len(d.log("broken pipe")); n > most {
		t.Errorf("100 requests whose answers nobody reads are logged in %d lines, want at most %d", n, most)
	}
}

func TestAPlaceForMetricsThatIsNoneIsAMistypedCall(t *testing.T) {
	p := newPlace(t)
	for _, place := range []string{"9464", "unix:", "/run/m.sock"} {
		cmd := exec.CommandContext(t.Context(), binary, append(p.command()[1:], "--metrics", place)...)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "want unix:PATH or HOST:PORT") {
			t.Errorf("--metrics %s: %v\n%s", place, err, out)
		}
	}
}
