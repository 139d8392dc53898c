package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

func TestWhatIsStoredIsThereWhenTheProcessIsNot(t *testing.T) {
	leavesNothing(t)
	path := filepath.Join(folder(t), "sheet")
	s, err := server.OpenSheet(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const size = 3 << 20 // over several windows
	if err := s.Grow(size); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	for _, part := range []struct{ at, n int64 }{{0, 1}, {1, 100}, {4095, 2}, {256<<10 - 1, 2}, {1 << 20, 300 << 10}, {100, 10}, {size - 5, 5}} {
		text := bytes.Repeat([]byte{byte(part.at) | 1}, int(part.n))
		copy(want[part.at:], text)
		if err := s.Put(part.at, text); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %d bytes, %v, and not what was stored", len(got), err)
	}
}

func TestAFileThatIsCutUnderAStoreIsAnErrorAndNoCrash(t *testing.T) {
	leavesNothing(t)
	path := filepath.Join(folder(t), "sheet")
	s, err := server.OpenSheet(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	text := bytes.Repeat([]byte("x"), 10_000)
	if err := errors.Join(s.Grow(1<<20), s.Put(0, text), s.Check()); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(50_000, text); !errors.Is(err, server.ErrLost) {
		t.Errorf("a store behind the end: %v", err)
	}
	if err := s.Check(); !errors.Is(err, server.ErrLost) {
		t.Errorf("a look at what was cut: %v", err)
	}
	if err := errors.Join(os.Truncate(path, 1<<20), s.Check(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); !errors.Is(err, server.ErrLost) {
		t.Errorf("a look at what was removed: %v", err)
	}
}

// At whatever byte a process is killed within a store, its record says what it said before, or what it says after, and is whole.
func TestAStoreThatWasInterruptedIsNone(t *testing.T) {
	head := server.Encode(server.Entry{Kind: "head", Version: 1, Boot: "b", Generation: 1})
	hold := func(id, addr string) []byte { return server.Encode(holdOf(id, addr)) }
	before := append(head, hold("0123456789abcdef", "10.9.0.2/24")...)
	line := append(hold("0123456789abcdea", "10.9.0.3/24"), hold("0123456789abcdeb", "10.9.0.4/24")...)
	whole := append(bytes.Clone(before), line...)
	for from := range len(line) + 1 {
		text := append(bytes.Clone(whole), make([]byte, 100)...)
		clear(text[len(before):][:from])
		want := 1
		if from == 0 {
			want = 3
		}
		if holds, damage := server.ReadLines(text, "b"); len(holds) != want || damage != nil {
			t.Errorf("without its first %d bytes: %d leases, %v", from, len(holds), damage)
		}
	}
}

func TestASignThatWasInterruptedIsNotTooLarge(t *testing.T) {
	old, later := server.Sign("boot", 17, 9_999_998), server.Sign("boot", 17, 10_000_407)
	for from := range len(old) {
		torn := old[:from] + later[from:]
		var boot string
		var generation, size int64
		if _, err := fmt.Sscanf(torn, "%s %d %d\n", &boot, &generation, &size); err != nil || generation != 17 || size > 10_000_407 {
			t.Errorf("%q: generation %d, size %d, %v", torn, generation, size, err)
		}
	}
}

func TestAReleaseIsRecordedWhenItIsAnswered(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	s := run(t, "service", dir+"/s", dir+"/state", "default=10.9.0.0/24")
	c := open(t, dir+"/s")
	kept := allocate(t, c, network.Request{})
	for range 50 {
		l := allocate(t, c, network.Request{})
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if text, err := written(dir + "/state/leases.log"); err != nil || !strings.Contains(string(text), `"kind":"free","lease":"`+l.ID) {
			t.Fatalf("the release is not in the record: %v", err)
		}
	}
	s.kill()
	next := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: dir + "/state"})
	if leases := list(t, open(t, next.path)); len(leases) != 1 || leases[0].ID != kept.ID {
		t.Errorf("after the crash there is %+v", leases)
	}
}

func TestAReleaseByNameIsRecordedWhenItIsAnswered(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/24")
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Socket: old.socket})
	c := open(t, s.path)
	id := list(t, c)[0].ID
	if err := c.Call(within(t, patience), network.MethodEvict, network.LeaseRef{Lease: id}, nil); err != nil {
		t.Fatal(err)
	}
	if text, err := written(filepath.Join(old.dir, "leases.log")); err != nil || !strings.Contains(string(text), `"kind":"free","lease":"`+id) {
		t.Errorf("the release is not in the record: %v", err)
	}
}

func TestAStoppedServiceLeavesNoZeros(t *testing.T) {
	leavesNothing(t)
	state := filepath.Join(folder(t), "state")
	s, err := listen(filepath.Join(folder(t), "s"), server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	allocate(t, open(t, s.path), network.Request{})
	s.end()
	if text, err := os.ReadFile(state + "/leases.log"); err != nil || len(text) == 0 || bytes.IndexByte(text, 0) >= 0 {
		t.Errorf("the record is %q, %v", text, err)
	}
}

// Whoever cuts, removes or replaces the files of a record while it is written ends no service, and loses no lease that is changed after that.
func TestARecordThatIsDamagedUnderARunningServiceIsWrittenAnew(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	s := run(t, "service", dir+"/s", dir+"/state", "default=10.9.0.0/16")
	c := open(t, dir+"/s")
	held := map[string]bool{}
	log, note := dir+"/state/leases.log", dir+"/state/started"
	for range 10 {
		for _, damage := range []func() error{
			func() error { return os.Truncate(log, 0) },
			func() error { return os.Truncate(log, 300) },
			func() error { return os.Truncate(note, 0) },
			func() error { return os.Remove(log) },
			func() error { return os.Rename(log, log+".moved") },
			func() error {
				return errors.Join(os.Link(log, log+".linked"), os.Rename(log+".linked", log+".moved"), os.Remove(log))
			},
			func() error { return errors.Join(os.Remove(log), os.Remove(note)) },
			func() error {
				return errors.Join(os.WriteFile(log+".other", []byte("other\n"), 0o600), os.Rename(log+".other", log))
			},
		} {
			for range 3 {
				held[allocate(t, c, network.Request{}).ID] = true
			}
			if err := damage(); err != nil {
				t.Fatal(err)
			}
		}
	}
	held[allocate(t, c, network.Request{}).ID] = true
	if err := s.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("the service: %v", err)
	}
	s.kill()
	var says journal
	next := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16"), StateDir: dir + "/state", Logger: says.logger()})
	for _, l := range list(t, open(t, next.path)) {
		delete(held, l.ID)
	}
	if warnings := says.warnings(); len(held) > 0 || len(warnings) > 0 {
		t.Errorf("%d leases are lost, and it warns: %v", len(held), warnings)
	}
}

// The same while many requests are on their way: a store may meet a file that was cut since it was looked at.
func TestARecordThatIsCutAgainAndAgainLosesNothingInTheEnd(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	s := run(t, "service", dir+"/s", dir+"/state", "default=10.9.0.0/16")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				os.Truncate(dir+"/state/leases.log", 0)
				os.Truncate(dir+"/state/started", 0)
			}
		}
	}()
	c := open(t, dir+"/s")
	held := map[string]bool{}
	for range 500 {
		l, err := network.Allocate(t.Context(), c, network.Request{})
		if err == nil && len(held) < 200 {
			held[l.ID] = true
		} else if err == nil {
			err = l.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-stopped
	held[allocate(t, c, network.Request{}).ID] = true
	s.kill()
	next := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16"), StateDir: dir + "/state"})
	for _, l := range list(t, open(t, next.path)) {
		delete(held, l.ID)
	}
	if len(held) > 0 {
		t.Errorf("%d leases are lost", len(held))
	}
}

// holdOf is a line that can be read.
func holdOf(id, address string) server.Entry {
	return server.Entry{
		Kind: "hold", Lease: id, Network: "n", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}, MAC: "02:00:00:00:00:" + id[len(id)-2:],
		Holder: process.ID{PID: 1, Start: 2, Boot: "b"},
	}
}
