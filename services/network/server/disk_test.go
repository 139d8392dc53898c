package server_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// mountedMain is a service in a mount namespace of its own, whose state folder is a small disk, or cannot be written to. The line "readonly" on its input makes a
// folder that can be written to one that cannot.
func mountedMain(how, path, state string) {
	err := os.MkdirAll(state, 0o700)
	switch {
	case err != nil:
	case how == "small":
		err = unix.Mount("tmpfs", state, "tmpfs", 0, "size=32k")
	case how == "readonly":
		err = forbidWriting(state)
	}
	if err == nil {
		var n server.Network
		if n, err = server.ParseNetwork("default=10.9.0.0/24"); err == nil {
			_, err = listen(path, server.Config{Networks: []server.Network{n}, StateDir: state, Socket: path})
		}
	}
	fmt.Printf("ready\n%v\n", err)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(forbidWriting(state))
	}
}

// forbidWriting puts a mount over a folder by which nothing of it can be written.
func forbidWriting(folder string) error {
	return errors.Join(unix.Mount(folder, folder, "", unix.MS_BIND, ""), unix.Mount("", folder, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
}

// mounted starts a service on a state folder that is mounted in some way, and returns what it says of its start.
func mounted(t *testing.T, how, path, state string) (*child, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	c := runIn(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, "mounted", how, path, state)
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return c, strings.TrimSpace(line)
}

// files are the files of a folder by their names.
func files(t *testing.T, folder string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

func TestOnAFullDiskALeaseIsRecordedOrNotGivenOutAndNoneIsLost(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	s, said := mounted(t, "small", dir+"/s", dir+"/state")
	if said != "<nil>" {
		t.Fatal(said)
	}
	inside := fmt.Sprintf("/proc/%d/root%s/state", s.pid(), dir)
	c := open(t, dir+"/s")
	held := map[string]bool{}
	hold := func() error {
		l, err := network.Allocate(within(t, patience), c, network.Request{})
		if err == nil {
			held[l.ID] = true
		}
		return err
	}
	for range 3 {
		if err := hold(); err != nil {
			t.Fatal(err)
		}
	}
	fill := filepath.Join(inside, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	failures := 0
	for range 100 { // what is left of the record's last page goes first
		if err := hold(); err == nil {
			continue
		} else if failures++; !errors.Is(err, wire.Unavailable) || !strings.Contains(err.Error(), "cannot record the lease") || !strings.Contains(err.Error(), "no space left on device") {
			t.Fatalf("on a full disk: %v", err)
		}
	}
	if failures == 0 || len(list(t, c)) != len(held) {
		t.Errorf("%d allocates failed, and of %d leases %d are listed", failures, len(held), len(list(t, c)))
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := hold(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if _, err := io.WriteString(s.stdin, "readonly\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := s.stdout.ReadString('\n'); strings.TrimSpace(line) != "<nil>" {
		t.Fatal(line, err)
	}
	for range 3 {
		if err := hold(); err != nil && (!errors.Is(err, wire.Unavailable) || !strings.Contains(err.Error(), "cannot record the lease")) {
			t.Errorf("when the folder cannot be written to: %v", err)
		}
	}
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "left")
	if err := os.CopyFS(left, os.DirFS(inside)); err != nil {
		t.Fatal(err)
	}
	s.kill()
	for _, l := range list(t, open(t, start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: left}).path)) {
		delete(held, l.ID)
	}
	if len(held) > 0 {
		t.Errorf("%d leases are lost", len(held))
	}
}

func TestOnAReadOnlyDiskAServiceSaysSoAndChangesNothing(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/24")
	if err := os.WriteFile(filepath.Join(old.dir, "leases.log.new"), nil, 0o600); err != nil { // as of one that was killed while it copied
		t.Fatal(err)
	}
	before := files(t, old.dir)
	c, said := mounted(t, "readonly", filepath.Join(folder(t), "s"), old.dir)
	if !strings.Contains(said, "record of leases") || !strings.Contains(said, "read-only file system") {
		t.Errorf("it says %q", said)
	}
	c.kill()
	after := files(t, old.dir)
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s is %q, and was %q", name, after[name], text)
		}
	}
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir})
	if leases := list(t, open(t, s.path)); len(leases) != 1 || leases[0].Holder.PID != old.holder.pid() {
		t.Errorf("when it can be written to there is %+v", leases)
	}
}

// The record of a program from before there were aliases, and the first line of one that is to come.
func TestRecordsOfOtherVersionsAreReadOrSetAside(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/24")
	path := filepath.Join(old.dir, "leases.log")
	text, err := written(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("aliases")) {
		t.Fatalf("a lease without aliases is recorded as %s", text)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	head, _ := server.Decode(bytes.TrimSpace(lines[0]))
	for _, version := range []int{1, 2} {
		head.Version = version
		lines[0] = server.Encode(head)
		unknown := append(server.Seal([]byte(`{"kind":"hold","what":"it means"}`)), '\n')
		record := bytes.Join(lines, nil)
		if version > 1 {
			record = append(record, unknown...)
		}
		if err := os.WriteFile(path, record, 0o600); err != nil {
			t.Fatal(err)
		}
		var log journal
		suspect := container(t, old.socket)
		s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Socket: old.socket, Logger: log.logger()})
		leases := list(t, open(t, s.path))
		if version == 1 {
			if len(leases) != 1 || len(log.warnings()) > 0 {
				t.Errorf("version 1: there is %+v, and it warns %v", leases, log.warnings())
			}
			s.end()
			continue
		}
		aside := path + ".version-2"
		if kept, err := os.ReadFile(aside); err != nil || !bytes.Equal(kept, record) {
			t.Errorf("it is not set aside: %v", err)
		}
		if w := log.warnings(); len(w) == 0 || !strings.Contains(w[0], aside) || !strings.Contains(w[0], "later version") {
			t.Errorf("it says %v", w)
		}
		refused(t, s, suspect.PID())
	}
}

func TestTheCostOfAWriteDoesNotGrowWithTheLeasesHeld(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16"), StateDir: dir, Limits: server.Limits{Session: 1 << 20}})
	c := open(t, s.path)
	// One lease in a record of few and of many: the file is the same, and has one line more.
	state := func() (file uint64, size int) {
		var st unix.Stat_t
		path := filepath.Join(dir, "leases.log")
		text, err := written(path)
		if err := errors.Join(err, unix.Stat(path, &st)); err != nil {
			t.Fatal(err)
		}
		return st.Ino, len(text)
	}
	grows := func() (file uint64, by int) {
		before, had := state()
		allocate(t, c, network.Request{})
		after, has := state()
		return after ^ before, has - had
	}
	for held, more := range map[int]int{10: 10, 900: 890} {
		for range more {
			allocate(t, c, network.Request{})
		}
		if file, by := grows(); file != 0 || by <= 0 || by > 600 {
			t.Errorf("with %d leases it is another file, or grows by %d bytes", held, by)
		}
	}
}
