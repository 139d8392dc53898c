package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// A crash is a service in a process of its own that was killed while a holder had a lease.
type crash struct {
	dir    string // of the record
	socket string
	holder *child // with 10.9.0.2 and the hostname web
}

func crashed(t *testing.T, prefix string) crash {
	t.Helper()
	dir := folder(t)
	c := crash{dir: filepath.Join(dir, "state"), socket: filepath.Join(dir, "old")}
	s := run(t, "service", c.socket, c.dir, "default="+prefix)
	c.holder = run(t, "holder", c.socket)
	c.holder.allocate(order{Hostname: "web"})
	s.kill()
	return c
}

// container starts a process whose environment is that of a container of the broker at a socket.
func container(t *testing.T, socket string) *process.Handle {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.Env = []string{"FAIRLEAD_ADDRESS=10.9.0.9/24", "FAIRLEAD_SOCKET=" + socket}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	h, err := process.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
		h.Close()
	})
	return h
}

func TestAfterACrashALivingHolderKeepsItsLease(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/30")
	var log journal
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30"), StateDir: old.dir, Socket: old.socket, Logger: log.logger()})
	c := open(t, s.path)
	leases := list(t, c)
	if len(leases) != 1 || leases[0].State != network.StateOrphaned || leases[0].Addresses[0] != "10.9.0.2/30" || leases[0].Hostname != "web" ||
		leases[0].Holder.PID != old.holder.pid() {
		t.Fatalf("after the crash there is %+v", leases)
	}
	if infos, err := network.Networks(t.Context(), c); err != nil || infos[0].Orphaned != 1 || infos[0].Held != 0 || infos[0].Free != 0 {
		t.Errorf("networks are %+v, %v", infos, err)
	}
	_, err := network.Allocate(within(t, time.Second), c, network.Request{})
	if !errors.Is(err, wire.Unavailable) || !strings.Contains(err.Error(), fmt.Sprint(old.holder.pid())) {
		t.Errorf("the only address: %v, want unavailable because of process %d", err, old.holder.pid())
	}
	old.holder.kill()
	allocate(t, c, network.Request{Hostname: "web"})
	if lines := log.warnings(); len(lines) > 0 {
		t.Errorf("it warns: %v", lines)
	}
}

func TestAfterACrashALivingWitnessKeepsALease(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	state, path := filepath.Join(dir, "state"), filepath.Join(dir, "old")
	old := run(t, "service", path, state, "default=10.9.0.0/30")
	holder := run(t, "holder", path)
	witness := holder.linger("linger")
	holder.allocate(order{Witness: witness.PID()})
	holder.kill()
	old.kill()
	for range 2 { // also over a second crash
		s := run(t, "service", filepath.Join(folder(t), "s"), state, "default=10.9.0.0/30")
		s.kill()
	}
	s := start(t, server.Config{Networks: networks(t, "other=10.9.0.0/29"), StateDir: state})
	c := open(t, s.path)
	if leases := list(t, c); len(leases) != 1 || leases[0].State != network.StateOrphaned || leases[0].Network != "other" {
		t.Fatalf("after the crash, and with other networks, there is %+v", leases)
	}
	if l := allocate(t, c, network.Request{Network: "other"}); l.Addresses[0].Addr() == netip.MustParseAddr("10.9.0.2") {
		t.Error("the address is given out")
	}
	witness.Signal(syscall.SIGKILL)
	until(t, "the lease ends", func() bool { return len(list(t, c)) == 1 })
}

func TestAStoppedServiceLeavesTheLeasesOfTheLivingToTheNext(t *testing.T) {
	leavesNothing(t)
	state := filepath.Join(folder(t), "state")
	first, err := listen(filepath.Join(folder(t), "s"), server.Config{Networks: networks(t, "default=10.9.0.0/29"), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	live, dead := run(t, "holder", first.path), run(t, "holder", first.path)
	a := live.allocate(order{Hostname: "web"})
	dead.allocate(order{})
	closing := open(t, first.path)
	allocate(t, closing, network.Request{})
	closing.Close()
	first.end()
	dead.kill()
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/29"), StateDir: state})
	if leases := list(t, open(t, s.path)); len(leases) != 1 || leases[0].ID != a.Lease || leases[0].State != network.StateOrphaned {
		t.Errorf("after the stop there is %+v", leases)
	}
}

func TestADamagedRecordIsSaidAndHoldsBackWhatItCannotTell(t *testing.T) {
	record := func(dir string) string { return filepath.Join(dir, "leases.log") }
	edit := func(change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			text, err := written(record(dir))
			if lines := bytes.SplitAfter(text, []byte("\n")); len(lines) == 4 && bytes.Equal(lines[1], lines[2]) {
				text = text[:len(text)-len(lines[2])] // the hold stands there twice if the record was begun while it was made
			}
			if err == nil {
				err = os.WriteFile(record(dir), change(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		keeps  bool // the lease can still be read
	}{
		{"missing", func(t *testing.T, dir string) { os.Remove(record(dir)) }, false},
		{"folder missing", func(t *testing.T, dir string) { os.RemoveAll(dir) }, false},
		{"empty", edit(func(text []byte) []byte { return nil }), false},
		{"cut in a line", edit(func(text []byte) []byte { return text[:len(text)-20] }), false},
		{"cut after a line", edit(func(text []byte) []byte { return text[:bytes.IndexByte(text, '\n')+1] }), false},
		{"garbled head", edit(func(text []byte) []byte { text[20] ^= 1; return text }), true},
		{"garbled lease", edit(func(text []byte) []byte { text[len(text)-20] ^= 1; return text }), false},
		{"zeros for the last line", edit(func(text []byte) []byte { clear(text[bytes.LastIndexByte(text[:len(text)-1], '\n')+1:]); return text }), false},
		{"a zero for a line's first byte", edit(func(text []byte) []byte { text[bytes.IndexByte(text, '\n')+1] = 0; return text }), false},
		{"zeros for all", edit(func(text []byte) []byte { clear(text); return text }), false},
		{"no end of the last line", edit(func(text []byte) []byte { text[len(text)-1] = 'x'; return text }), false},
		{"garbage", edit(func(text []byte) []byte { return bytes.Repeat([]byte{0, 0xff, '\n', 'x'}, 50_000) }), false},
		{"garbage at its end", edit(func(text []byte) []byte { return append(text, "what is this\n"...) }), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			old := crashed(t, "10.9.0.0/24")
			suspect := container(t, old.socket)
			test.damage(t, old.dir)
			var log journal
			config := server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Socket: old.socket, Logger: log.logger()}
			again, err := listen(filepath.Join(folder(t), "again"), config) // it is not forgotten over a restart
			if err != nil {
				t.Fatal(err)
			}
			until(t, "it says so", func() bool { return len(log.warnings()) > 0 && strings.Contains(log.warnings()[0], old.dir) })
			refused(t, again, suspect.PID())
			again.end()
			s := start(t, config)
			refused(t, s, suspect.PID())
			c := open(t, s.path)
			if leases := list(t, c); (len(leases) == 1) != test.keeps {
				t.Errorf("what could be read is %+v", leases)
			}
			done := make(chan *network.Lease)
			go func() {
				l, _ := network.Allocate(t.Context(), c, network.Request{Hostname: "new"})
				done <- l
			}()
			until(t, "the request waits", func() bool { return s.Waiting() == 1 })
			suspect.Signal(syscall.SIGKILL)
			if l := <-done; l == nil || test.keeps && l.Addresses[0].Addr() == netip.MustParseAddr("10.9.0.2") {
				t.Errorf("when the suspect is gone: %+v", l)
			}
		})
	}
}

// refused checks that no address is given out because of a process.
func refused(t *testing.T, s *service, pid int) {
	t.Helper()
	c := open(t, s.path)
	until(t, "the suspect is found", func() bool {
		_, err := network.Allocate(within(t, 100*time.Millisecond), c, network.Request{})
		if errors.Is(err, wire.DeadlineExceeded) {
			return false // this machine is too busy to answer in time
		}
		if !errors.Is(err, wire.Unavailable) {
			t.Fatalf("an address although the record is damaged: %v", err)
		}
		return strings.Contains(err.Error(), fmt.Sprint(pid))
	})
	if infos, err := network.Networks(t.Context(), c); err != nil || infos[0].Free != 0 {
		t.Errorf("networks are %+v, %v", infos, err)
	}
}

func TestWhatIsNormalIsNotSaid(t *testing.T) {
	for _, test := range []struct {
		name  string
		setUp func(t *testing.T, old crash)
	}{
		{"a first start", func(t *testing.T, old crash) { os.RemoveAll(old.dir) }},
		{"killed within a store", func(t *testing.T, old crash) {
			path := filepath.Join(old.dir, "leases.log")
			text, err := written(path)
			file, openErr := os.OpenFile(path, os.O_WRONLY, 0)
			if err := errors.Join(err, openErr); err != nil {
				t.Fatal(err)
			}
			file.WriteAt([]byte("234abcd {\"kind\":\"hold\"}\n"), int64(len(text)+1)) // all but its first byte
			file.Close()
		}},
		{"killed within a write, by a program that writes so", func(t *testing.T, old crash) {
			path := filepath.Join(old.dir, "leases.log")
			text, err := written(path)
			if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
				t.Fatal(err)
			}
			file, err := os.OpenFile(filepath.Join(old.dir, "leases.log"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			file.WriteString(`1234abcd {"kind":"ho`)
			file.Close()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			old := crashed(t, "10.9.0.0/24")
			old.holder.kill()
			test.setUp(t, old)
			var log journal
			s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Socket: old.socket, Logger: log.logger()})
			if l := allocate(t, open(t, s.path), network.Request{Hostname: "web"}); l.Addresses[0].String() != "10.9.0.2/24" {
				t.Errorf("it gets %v", l.Addresses)
			}
			log.mu.Lock()
			defer log.mu.Unlock()
			if len(log.lines) > 0 {
				t.Errorf("it says %v", log.lines)
			}
		})
	}
}

func TestTheBrokerNamesSuspectsToo(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/24")
	os.Remove(filepath.Join(old.dir, "leases.log"))
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	asked := 0
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Suspects: func(context.Context) ([]int, error) {
		if asked++; asked == 1 {
			return nil, errors.New("the broker is being started again")
		}
		return []int{old.holder.pid(), gone.Process.Pid, 1 << 22}, nil
	}})
	refused(t, s, old.holder.pid())
	old.holder.kill()
	allocate(t, open(t, s.path), network.Request{})
	if s.InDoubt() {
		t.Error("there is doubt although all suspects are gone")
	}
}

func TestALeaseThatCannotBeRecordedIsNotGivenOut(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	state, path := filepath.Join(dir, "state"), filepath.Join(dir, "s")
	s := run(t, "service", path, state, "default=10.9.0.0/30")
	c := open(t, path)
	l := allocate(t, c, network.Request{})
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	fails := func(why string) {
		t.Helper()
		_, err := network.Allocate(within(t, patience), c, network.Request{})
		if !errors.Is(err, wire.Unavailable) || !strings.Contains(err.Error(), "cannot record the lease") {
			t.Errorf("%s: %v", why, err)
		}
		if leases := list(t, c); len(leases) > 0 {
			t.Errorf("%s: held is %+v", why, leases)
		}
	}
	works := func(why string) {
		t.Helper()
		if err := allocate(t, c, network.Request{}).Release(t.Context()); err != nil {
			t.Errorf("%s: %v", why, err)
		}
	}
	limitFiles(t, s, 100) // as a full disk
	fillRecord(t, c)
	fails("no room")
	limitFiles(t, s, unix.RLIM_INFINITY)
	works("room again")
	os.Remove(filepath.Join(state, "leases.log"))
	works("the file removed")
	os.RemoveAll(state)
	fails("the folder removed")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	works("the folder there again")
}

func TestARecordDoesNotGrowWithWhatIsOver(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	state, path := filepath.Join(dir, "state"), filepath.Join(dir, "old")
	old := run(t, "service", path, state, "default=10.9.0.0/24")
	holder := run(t, "holder", path)
	kept := holder.allocate(order{Hostname: "kept"})
	c := open(t, path)
	for range 900 {
		if err := allocate(t, c, network.Request{}).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(state, "leases.log"))
	if lines := bytes.Count(text, []byte("\n")); err != nil || lines > 1500 {
		t.Errorf("the record has %d lines, %v", lines, err)
	}
	if info, err := os.Stat(filepath.Join(state, "leases.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	until(t, "what is over is written down", func() bool { // it follows the replies
		text, err := os.ReadFile(filepath.Join(state, "leases.log"))
		self, idErr := process.Identify(os.Getpid())
		holds, readErr := server.ReadLines(text, self.Boot)
		return errors.Join(err, idErr, readErr) == nil && len(holds) == 1
	})
	old.kill()
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: state})
	if leases := list(t, open(t, s.path)); len(leases) != 1 || leases[0].ID != kept.Lease {
		t.Errorf("after the crash there is %+v", leases)
	}
}

func TestALineOfTheRecordSurvivesNothingButItself(t *testing.T) {
	e := server.Entry{
		Kind: "hold", Lease: "0123456789abcdef", Network: "default", Hostname: "web", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")},
		MAC: "02:00:00:00:00:01", AllocatedAt: 1, Session: "s", PID: 7, UID: 8, Holder: process.ID{PID: 7, Start: 9, Boot: "b"},
	}
	line := bytes.TrimSuffix(server.Encode(e), []byte("\n"))
	got, err := server.Decode(line)
	if err != nil || !bytes.Equal(server.Encode(got), server.Encode(e)) {
		t.Fatalf("decoded is %+v, %v", got, err)
	}
	for i := range line {
		for _, flip := range []byte{1, 0x80} {
			broken := bytes.Clone(line)
			broken[i] ^= flip
			if _, err := server.Decode(broken); err == nil && !bytes.EqualFold(broken, line) {
				t.Errorf("taken: %q", broken)
			}
		}
	}
}

func TestALineSaysWhoseLifeKeepsTheLease(t *testing.T) {
	someone := process.ID{PID: 1, Start: 2, Boot: "b"}
	for _, test := range []struct {
		name  string
		entry server.Entry
		ok    bool
	}{
		{"nobody", server.Entry{}, false},
		{"its holder", server.Entry{Holder: someone}, true},
		{"a witness", server.Entry{Witnesses: []process.ID{someone}}, true},
		{"a witness that is none", server.Entry{Holder: someone, Witnesses: []process.ID{{}}}, false},
		{"its session is over", server.Entry{Left: true}, true},
	} {
		e := test.entry
		e.Kind, e.Lease, e.Network, e.MAC = "hold", "0123456789abcdef", "n", "02:00:00:00:00:01"
		e.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}
		if _, err := server.Decode(bytes.TrimSuffix(server.Encode(e), []byte("\n"))); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func FuzzDecodeLine(f *testing.F) {
	for _, e := range []server.Entry{
		{Kind: "head", Version: 1, Boot: "b", Generation: 1},
		{Kind: "hold", Lease: "0123456789abcdef", Network: "n", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}, MAC: "02:00:00:00:00:01",
			Holder: process.ID{PID: 1, Start: 2, Boot: "b"}},
		{Kind: "hold", Lease: "0123456789abcdef", Network: "n", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}, MAC: "02:00:00:00:00:01", Left: true},
		{Kind: "hold", Lease: "0123456789abcdef", Network: "n", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
			Aliases: []string{"www"}, MAC: "02:00:00:00:00:01", MACGiven: true, Left: true},
		{Kind: "head", Version: 2, Boot: "b", Generation: 1},
		{Kind: "witness", Lease: "0123456789abcdef", Process: process.ID{PID: 1, Start: 2, Boot: "b"}},
		{Kind: "free", Lease: "0123456789abcdef"},
	} {
		_, text, _ := bytes.Cut(bytes.TrimSpace(server.Encode(e)), []byte(" "))
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		server.Decode(text)
		e, err := server.Decode(server.Seal(text))
		if err != nil {
			return
		}
		again, err := server.Decode(bytes.TrimSuffix(server.Encode(e), []byte("\n")))
		if err != nil || !bytes.Equal(server.Encode(again), server.Encode(e)) {
			t.Errorf("%+v is %+v after a second time, %v", e, again, err)
		}
	})
}

func FuzzReadRecord(f *testing.F) {
	whole := bytes.Join([][]byte{
		server.Encode(server.Entry{Kind: "head", Version: 1, Boot: "b", Generation: 1}),
		server.Encode(server.Entry{Kind: "hold", Lease: "0123456789abcdef", Network: "n", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24")}, MAC: "02:00:00:00:00:01",
			Holder: process.ID{PID: 1, Start: 2, Boot: "b"}}),
		server.Encode(server.Entry{Kind: "leave", Lease: "0123456789abcdef"}),
	}, nil)
	f.Add(whole)
	f.Add(whole[:len(whole)-5])
	f.Add([]byte("\n\n"))
	f.Add(append(bytes.Clone(whole), make([]byte, 100)...))
	f.Add(append(append(bytes.Clone(whole), 0), whole...))
	f.Fuzz(func(t *testing.T, text []byte) {
		holds, damage := server.ReadLines(text, "b")
		if end := bytes.Index(append([]byte("\n"), text...), []byte("\n\x00")); end >= 0 { // a zero where a line would begin is the end
			text = text[:end]
		}
		if damage == nil && len(text) > 0 && text[len(text)-1] != '\n' {
			t.Errorf("a record without an end is whole: %q", text)
		}
		for _, e := range holds {
			if len(e.Addresses) == 0 {
				t.Errorf("a lease without an address: %+v", e)
			}
		}
	})
}

func TestWhatIsNoFileInTheRecordsPlaceIsRefusedAndNobodyWaitsForIt(t *testing.T) {
	leavesNothing(t)
	for _, name := range []string{"leases.log", "started"} {
		state := folder(t)
		if err := unix.Mkfifo(filepath.Join(state, name), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := server.New(server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: state})
		if err == nil || !strings.Contains(err.Error(), filepath.Join(state, name)) {
			t.Errorf("%s is a pipe: %v, want an error that names it", name, err)
		}
	}
	state := folder(t) // what is left of an unfinished writing is in nobody's way
	if err := unix.Mkfifo(filepath.Join(state, "leases.log.new"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: state})
	allocate(t, open(t, s.path), network.Request{})
}
