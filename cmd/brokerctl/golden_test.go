package main_test

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

// serveNetwork has this process be the network service, with a network that has something to say of all.
func (w *world) serveNetwork() {
	w.Helper()
	prefix := netip.MustParsePrefix("10.9.0.0/29")
	route := network.Route{To: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("10.9.0.6")}
	networks := []server.Network{{
		Name: "lab", Prefixes: []netip.Prefix{prefix}, MTU: 1400, DNS: []netip.Addr{netip.MustParseAddr("10.9.0.3")}, Search: []string{"example.com"},
		Routes: []network.Route{route}, Quarantine: time.Hour, MACPrefix: []byte{2, 66},
		Reserved: []pool.Range{{First: netip.MustParseAddr("10.9.0.6"), Last: netip.MustParseAddr("10.9.0.6")}},
	}}
	srv, err := server.New(server.Config{
		StateDir: w.TempDir(), Networks: networks,
		Load: func() ([]server.Network, server.Limits, error) { return networks, server.Limits{}, nil },
	})
	w.must(err)
	w.Cleanup(func() { w.must(srv.Close()) })
	s := w.broker.Serve(services.Server{Service: network.Endpoint, Endpoints: map[string]*services.Mux{network.Endpoint: srv.Mux()}})
	w.Cleanup(func() { w.must(s.Stop()) })
}

// A full world has one of everything that a command shows.
type full struct {
	*world
	busy, leased, closed string // ids of sessions
}

func fullWorld(t *testing.T) full {
	w := full{world: newWorld(t, map[string]string{
		"typed":  strings.NewReplacer(echo, typed, `= "echo"`, `= "typed"`).Replace(working(t, "idle_exit = \"1h\"\nstop_timeout = \"5s\"\n[allow]\nopen = [\"any\"]\nadmin = [\"uid:4711\"]\n")),
		"broken": shell("com.example.broken", "echo no configuration >&2; exit 3", "run_at_load = false\nkeep_alive = \"never\"\n"),
		"wrong":  "name = \"com.example.wrong\"\nprogam = [\"/bin/true\"]\n",
	})}
	w.serveNetwork()
	on := w.broker.Dial(typed, client.Options{Title: "a busy one"})
	w.must(on.SetFact("job", "nightly"))
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	called := make(chan error, 1)
	go func() { called <- on.Call(ctx, "hang", nil, nil) }()
	t.Cleanup(func() { cancel(); <-called })
	watching, err := client.OpenStreaming[string, struct{}](t.Context(), on, "watch", "x")
	w.must(err)
	t.Cleanup(func() { watching.Close() })
	_, err = watching.Receive()
	w.must(err)
	holder := w.broker.Dial(network.Endpoint, client.Options{Title: "a holder"})
	_, err = network.Allocate(t.Context(), holder, network.Request{Network: "lab", Hostname: "web", Aliases: []string{"www"}})
	w.must(err)
	gone := w.broker.Dial(typed, client.Options{Title: "one that is over"})
	w.must(gone.Close())
	w.ctl("service start com.example.broken")
	w.busy, w.leased, w.closed = on.ID(), holder.ID(), gone.ID()
	w.until("both calls and the end are known", func() bool {
		s := w.member("session", "session inspect "+w.busy).(map[string]any)
		return len(s["calls"].([]any)) == 1 && len(s["open_streams"].([]any)) == 1 && s["peer_facts"] != nil && s["state"] == "open" &&
			w.member("session", "session inspect "+w.closed).(map[string]any)["state"] == "closed" && w.member("session", "session inspect "+w.leased).(map[string]any)["state"] == "open" &&
			w.details("service inspect com.example.broken")["state"] == "stopped"
	})
	return w
}

// What differs from run to run, and as what it stands in a golden file. Numbers come last.
var differing = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`), "MAC"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`), "CLOCK"},
	{regexp.MustCompile(`/[^ ",]*(/services\.d|/broker\.sock|\.test\b)`), "PATH$1"},
	{regexp.MustCompile(`\b([0-9a-f]{32}|[0-9a-f]{16})\b`), "ID"},
	{regexp.MustCompile(`\d+(\.\d+)?`), "N"},
	{regexp.MustCompile(`\b(Nh)?(Nm)?N(µs|ms|s|m|h|d)\b`), "AGE"},
}

// steady is a text without what differs from run to run.
func steady(text string) string {
	for _, d := range differing {
		text = d.pattern.ReplaceAllString(text, d.as)
	}
	return text
}

// columns is a steady text with short ids, whose columns are two blanks apart: how wide they are differs.
func columns(text string) string {
	text = regexp.MustCompile(`(sockets +client )\d+(, instance )\d+`).ReplaceAllString(text, "${1}N${2}N")
	text = regexp.MustCompile(`\b[0-9a-f]{8}\b`).ReplaceAllString(text, "ID")
	return regexp.MustCompile(`(?m) +$`).ReplaceAllString(regexp.MustCompile(` {2,}`).ReplaceAllString(steady(text), "  "), "")
}

// The golden files hold what programs and people read of each command: fields of JSON and columns are added, never changed. 'go test -update' writes them anew.
func TestWhatACommandPrintsIsWhatItHasPrintedBefore(t *testing.T) {
	w := fullWorld(t)
	for _, test := range []struct {
		name, line string
		code       int
	}{
		{"status", "status", 0},
		{"service-list", "service list", 0},
		{"service-inspect", "service inspect " + typed, 0},
		{"service-inspect-broken", "service inspect com.example.broken", 0},
		{"service-why", "service why com.example.broken", 0},
		{"service-wait", "service wait " + typed, 0},
		{"service-reset", "service reset com.example.broken", 0},
		{"service-reload", "service reload", 1},
		{"session-list", "session list --title one", 0},
		{"session-list-all", "session list --state all --endpoint " + typed, 0},
		{"session-inspect", "session inspect " + w.busy, 0},
		{"session-inspect-leased", "session inspect " + w.leased, 0},
		{"session-inspect-closed", "session inspect " + w.closed, 0},
		{"lease-list", "lease list", 0},
		{"lease-inspect", "lease inspect web", 0},
		{"network-list", "network list", 0},
		{"network-inspect", "network inspect lab", 0},
		{"call", "call " + typed + ` echo {"title":"x"}`, 0},
		{"call-accepted", "call " + typed + ` fail "exhausted" --accept exhausted`, 0},
		{"explain", "explain conflict", 0},
		{"session-close", "session close " + w.busy + " --reason enough", 0},
		{"network-reload", "network reload", 0},
		{"service-restart", "service restart " + typed, 0},
		{"service-stop", "service stop " + typed, 0},
		{"service-start", "service start " + typed, 0},
	} {
		if changes := regexp.MustCompile(`^(session-close|service-(restart|stop|start))$`); changes.MatchString(test.name) { // that cannot be done twice
			golden(t, "golden/"+test.name+".json", steady(w.exits(test.code, test.line+" --json")))
			continue
		}
		golden(t, "golden/"+test.name+".txt", columns(w.exits(test.code, test.line)))
		golden(t, "golden/"+test.name+".json", steady(w.exits(test.code, test.line+" --json")))
	}
}

// exits runs a command, which must have an exit code, and returns what it has printed.
func (w *world) exits(code int, line string) string {
	w.Helper()
	o := w.ctl(line)
	if o.code != code {
		w.Errorf("%s: exit code %d, want %d: %s", line, o.code, code, o.errs)
	}
	return o.out
}

// Each kind of event is there once, as it was last, in the order of their names.
func TestWhatMonitorPrintsIsWhatItHasPrintedBefore(t *testing.T) {
	w := fullWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	watching, synced := make(chan struct{}), make(chan struct{})
	go func() { // so that changes of leases are kept
		defer close(watching)
		for c := range network.Watch(ctx, w.broker.Dial(network.Endpoint, client.Options{Title: "a watcher"}), network.WatchRequest{}) {
			if c.Kind == network.ChangeSynced {
				close(synced)
			}
		}
	}()
	defer func() { cancel(); <-watching }()
	<-synced
	s := w.broker.Dial(network.Endpoint, client.Options{Title: "a last one"})
	_, err := network.Allocate(t.Context(), s, network.Request{Network: "lab", Hostname: "last"})
	w.must(err, s.Close())
	w.until("the end of the last one is known", func() bool {
		return w.member("session", "session inspect "+s.ID()).(map[string]any)["state"] == "closed"
	})
	w.done("session close " + w.busy + " --reason enough")
	w.done("service stop " + typed)
	w.ctl("service reload")
	for name, f := range map[string]followed{"monitor.txt": w.starts("monitor", "--since", "0"), "monitor.json": w.starts("monitor", "--since", "0", "--json")} {
		kinds := map[string]string{}
		for line := ""; !strings.Contains(line, "reload"); {
			line = f.line(w.world)
			kind := regexp.MustCompile(`(?:CLOCK  |"kind":")(\w+)`).FindString(steady(line))
			if !regexp.MustCompile(`\((brokerctl|a watcher)\)|"title":"(brokerctl|a watcher)"`).MatchString(line) { // theirs come in any order
				kinds[kind] = strings.ReplaceAll(columns(line), "  ", " ")
			}
		}
		var all strings.Builder
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			all.WriteString(kinds[kind])
		}
		golden(t, "golden/"+name, all.String())
	}
}

// What holds of every command: it has an example that is one, what it prints as JSON is documented and golden, and a script runs it, also into an error.
func TestEveryCommandHasExamplesDocumentedJSONAndAScript(t *testing.T) {
	operating, err := os.ReadFile("../../docs/operating.md")
	must(t, err)
	_, documented, _ := strings.Cut(string(operating), "### JSON")
	documented, _, _ = strings.Cut(documented, "\n## ")
	files, err := filepath.Glob("../../e2e/testdata/script/*.txtar")
	must(t, err)
	var scripts strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		scripts.WriteString(string(text))
	}
	plain := []string{"service logs", "completion", "help", "version"} // print what is no JSON
	for _, v := range brokerctl.Verbs() {
		if len(v.Examples) == 0 {
			t.Errorf("%s has no example", v.Name)
		}
		for _, e := range v.Examples {
			if e != v.Name && !strings.HasPrefix(e, v.Name+" ") || !strings.Contains(v.Help, "brokerctl "+e) {
				t.Errorf("%s: %q is no example of it, or its help does not have it", v.Name, e)
			}
		}
		if !regexp.MustCompile(`(?m)^(! )?exec (.* )?brokerctl ` + v.Name + `\b|^until .* brokerctl ` + v.Name + `\b|exec brokerctl ` + v.Name + `\b`).MatchString(scripts.String()) {
			t.Errorf("no script runs brokerctl %s", v.Name)
		}
		if !regexp.MustCompile(`(?m)^exits [1-6] brokerctl ` + v.Name + `\b`).MatchString(scripts.String()) {
			t.Errorf("no script has an error of brokerctl %s and its exit code", v.Name)
		}
		if slices.Contains(plain, v.Name) {
			continue
		}
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(lastWords(v.Name, documented)) + "`").MatchString(documented) {
			t.Errorf("docs/operating.md does not say what %s prints as JSON", v.Name)
		}
	}
}

// lastWords is how the table of JSON names a command: by both its words, or the second alone behind another of the noun.
func lastWords(name, documented string) string {
	if strings.Contains(documented, "`"+name+"`") {
		return name
	}
	_, second, _ := strings.Cut(name, " ")
	return second
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
