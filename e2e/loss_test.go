package e2e_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/wire"
)

// killInstance kills the network service and returns the moment before.
func (w *world) killInstance() (before int64) {
	w.t.Helper()
	instance := w.instance()
	before = monotonic()
	instance.kill()
	if !instance.gone(patience) {
		w.t.Fatalf("%v lives after SIGKILL", instance)
	}
	return before
}

// spread describes durations.
func spread(all []time.Duration) string {
	slices.Sort(all)
	return fmt.Sprintf("of %d: least %v, median %v, p99 %v, most %v", len(all), all[0], all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
}

func TestEveryHolderIsToldThatTheNetworkServiceWasKilled(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	var holders []holder
	for range count(5, 10) {
		holders = append(holders, w.holder(10, "default", ""))
	}
	for _, h := range holders {
		h.opened(t)
		h.leased(t)
	}
	before := w.killInstance()
	var took []time.Duration
	for _, h := range holders {
		for _, news := range h.told(t) {
			if news.End == nil || news.End.Code != wire.Interrupted || news.End.Origin != wire.Peer {
				t.Errorf("session %s is told %+v, want interrupted by the peer", news.Session, news.End)
			}
			took = append(took, time.Duration(news.At-before))
		}
	}
	t.Logf("told after the SIGKILL, %s", spread(took))
	if most := took[len(took)-1]; most > time.Second { // 100 ms on a machine that has nothing else to do
		t.Errorf("a holder was told only after %v", most)
	}
}

func TestContainersEndWithinTheGraceWhenTheNetworkServiceIsKilled(t *testing.T) {
	const grace = time.Second
	w := newWorld(t, "default=10.9.0.0/24", "lab=10.8.0.0/24")
	w.startBroker()
	var runs []*process
	for i := range count(6, 20) {
		command := "echo up; exec sleep 1000"
		if i%2 == 1 {
			command = "trap '' TERM; echo up; exec sleep 1000"
		}
		runs = append(runs, w.run("--network", "lab", "--grace", grace.String(), "--", "sh", "-c", command))
	}
	for _, r := range runs {
		r.stdout.next(t)
	}
	var sleeping []stage.Process
	eventually(t, "all containers run", func() bool {
		sleeping = slices.DeleteFunc(stage.Named(w.dir), func(s stage.Process) bool { return s.Args[0] != "sleep" })
		return len(sleeping) == len(runs)
	})
	containers := watch(t, sleeping)
	before := w.killInstance()
	for i, r := range runs {
		code, text := r.exit(t), r.stderr.whole(t)
		if code != 69 || !strings.Contains(text, "network lab") {
			t.Errorf("broker-run %d exits %d and says %q, want 69 and the network's name", i, code, text)
		}
	}
	took := time.Duration(monotonic() - before)
	t.Logf("the last of %d runtimes ended %v after the SIGKILL, with a grace of %v", len(runs), took, grace)
	if took > grace+2*time.Second {
		t.Error("that is too late")
	}
	if left := alive(containers); len(left) > 0 {
		t.Errorf("containers live: %v", left)
	}
}

// A report is a container's own word on when it had its address.
type report struct {
	file        string
	address     string
	first, last int64
}

func TestAddressesOfContainersThatLiveOnAreGivenToNobodyElse(t *testing.T) {
	n, bits := count(20, 100), count(27, 25) // 29 or 125 addresses: the others of the new ones must wait for those of the old ones
	const deaf = 3 * time.Second
	w := newWorld(t, fmt.Sprintf("default=10.9.0.0/%d", bits))
	w.startBroker()
	reports := filepath.Join(w.dir, "reports")
	if err := os.Mkdir(reports, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func(generation string, i int) *process {
		w.t.Helper()
		file := filepath.Join(reports, generation+"-"+strconv.Itoa(i))
		return w.run("--grace", "20s", "--", "env", roleVariable+"=reporter", self(), file, deaf.String())
	}
	var old, young []*process
	for i := range n {
		old = append(old, start("old", i))
	}
	for _, r := range old {
		r.stdout.next(t)
	}
	before := w.killInstance()
	for i := range n {
		young = append(young, start("young", i))
	}
	for i, r := range young {
		if _, err := r.stdout.TryNext(); err != nil {
			t.Fatalf("new runtime %d: %v\n%v", i, err, r.stderr)
		}
	}
	for i, r := range old {
		if code := r.exit(t); code != 69 {
			t.Errorf("old runtime %d exits %d, want 69\n%v", i, code, r.stderr)
		}
	}
	checkReports(t, reports, 2*n, before+int64(deaf))
}

// checkReports checks that no address was reported by two containers at the same time, and that the old ones lived until a time.
func checkReports(t *testing.T, folder string, want int, until int64) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != want {
		t.Fatalf("%d containers have reported: %v, want %d", len(entries), err, want)
	}
	byAddress := map[string][]report{}
	for _, e := range entries {
		r := readReport(t, filepath.Join(folder, e.Name()))
		if strings.HasPrefix(r.file, "old") && r.last < until-int64(time.Second) {
			t.Errorf("container %s ended too early: its last report is of %v before", r.file, time.Duration(until-r.last))
		}
		byAddress[r.address] = append(byAddress[r.address], r)
	}
	shared := 0
	for address, all := range byAddress {
		slices.SortFunc(all, func(a, b report) int { return cmp.Compare(a.first, b.first) })
		for i := range len(all) - 1 {
			shared++
			if all[i].last >= all[i+1].first {
				t.Errorf("%s: containers %s and %s reported it at the same time", address, all[i].file, all[i+1].file)
			}
		}
	}
	t.Logf("%d addresses were reported, %d of them by a second container later", len(slices.Collect(maps.Keys(byAddress))), shared)
}

func readReport(t *testing.T, path string) report {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := report{file: filepath.Base(path)}
	for line := range strings.Lines(string(text)) {
		var address string
		var at int64
		if _, err := fmt.Sscanf(line, "%s %d\n", &address, &at); err != nil {
			continue // the last line of one that was killed while it wrote
		}
		if r.first == 0 {
			r.first, r.address = at, address
		}
		if address != r.address || address == "" {
			t.Errorf("container %s reports %s and %s", r.file, r.address, address)
		}
		r.last = at
	}
	return r
}
