package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

// trappedCalls are the system calls by which the files of a record are changed, the one before each store into them, and those by which a service answers.
var trappedCalls = []uint32{
	unix.SYS_OPENAT, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT,
	unix.SYS_STATX, unix.SYS_SENDMSG, unix.SYS_WRITEV,
}

// layTrap has this process wait at the entry to each of the trapped calls until whoever has the listener lets it go on: seccomp_unotify(2). The listener is one of
// its descriptors.
func layTrap() error {
	const allow = 0x7fff0000 // SECCOMP_RET_ALLOW
	n := len(trappedCalls)
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number
	for i, nr := range trappedCalls {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(n - i), K: nr})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: allow}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}

// A notification is struct seccomp_notif of linux/seccomp.h, and a response what answers it.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// A trap lets a service go on until it is about to change its state, or to answer, for the n-th time after it was armed, and then kills it.
type trap struct {
	child *child
	state string // the folder
	fd    int
	armed atomic.Bool
	left  atomic.Int64   // changes until it is killed
	most  atomic.Uint64  // bytes that it has stored into its state at once
	ends  map[string]int // of the files that it stores into, when it was about to do so for the last time; only watch uses it
	over  chan struct{}  // closed when the service is gone
}

// trapped starts a service in a trap that is armed, or not yet. More is what server.Copy takes.
func trapped(t *testing.T, n int, armed bool, path, state, text string, more ...string) *trap {
	t.Helper()
	tr := &trap{child: launch(t, nil, "trapped", append([]string{path, state, text}, more...)...), state: state, ends: map[string]int{}, over: make(chan struct{})}
	tr.left.Store(int64(n))
	tr.armed.Store(armed)
	until(t, "the trap is laid", func() bool { return tr.attach() })
	go tr.watch()
	t.Cleanup(func() {
		tr.child.kill()
		<-tr.over
		unix.Close(tr.fd)
	})
	return tr
}

// attach takes the listener.
func (tr *trap) attach() bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", tr.child.pid()))
	for _, link := range links {
		if to, _ := os.Readlink(link); to != "anon_inode:seccomp notify" {
			continue
		}
		var number int
		fmt.Sscan(filepath.Base(link), &number)
		pidfd, err := unix.PidfdOpen(tr.child.pid(), 0)
		if err != nil {
			return false
		}
		defer unix.Close(pidfd)
		tr.fd, err = unix.PidfdGetfd(pidfd, number, 0)
		return err == nil
	}
	return false
}

// watch answers until the service is gone.
func (tr *trap) watch() {
	defer close(tr.over)
	for {
		poll := []unix.PollFd{{Fd: int32(tr.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents != 0 {
				return
			}
			continue
		}
		var n notification
		if tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != nil {
			continue // the thread is gone
		}
		if tr.armed.Load() && tr.changes(n) {
			if tr.left.Add(-1) == 0 {
				tr.child.cmd.Process.Kill()
				continue
			}
		}
		r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	}
}

func (tr *trap) ioctl(request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tr.fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// changes reports whether a call is about the service's state, or an answer.
func (tr *trap) changes(n notification) bool {
	switch n.nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_SENDMSG, unix.SYS_WRITEV:
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, n.args[0]))
		return err == nil && strings.HasPrefix(to, tr.state) || strings.HasPrefix(to, "socket:")
	}
	path := make([]byte, 256)
	read, err := unix.ProcessVMReadv(int(n.pid), []unix.Iovec{{Base: &path[0], Len: uint64(len(path))}}, []unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: len(path)}}, 0)
	if err != nil && read <= 0 { // the end of a page
		path = path[:1]
	}
	name, _, _ := bytes.Cut(path, []byte{0})
	ours := bytes.HasPrefix(name, []byte(tr.state)) || err != nil
	if ours && n.nr == unix.SYS_STATX {
		tr.look(string(name))
	}
	return ours
}

// look notes how much was stored into a file since the service was last about to store into it.
func (tr *trap) look(path string) {
	text, err := written(path)
	info, statErr := os.Stat(path)
	if errors.Join(err, statErr) != nil {
		return // it is gone
	}
	inode := fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino)
	tr.most.Store(max(tr.most.Load(), uint64(len(text)-min(len(text), tr.ends[inode]))))
	tr.ends[inode] = len(text)
}

// killed reports whether the service was killed in the trap.
func (tr *trap) killed() bool { return tr.left.Load() <= 0 }

func TestKilledAtAnyChangeOfItsStateAServiceStartsAndGivesNothingOutThatIsHeld(t *testing.T) {
	leavesNothing(t)
	const prefix = "10.9.0.0/29" // 5 addresses
	old := crashed(t, prefix)
	n, kills := 1, 0
	for ; ; n++ { // the same state, over and over
		dir := folder(t)
		tr := trapped(t, n, true, dir+"/s", old.dir, "default="+prefix)
		line, _ := tr.child.stdout.ReadString('\n')
		if strings.HasPrefix(line, "ready <nil>") {
			tr.child.kill()
			<-tr.over
			break
		}
		<-tr.over
		if !tr.killed() {
			t.Fatalf("it says %q", line)
		}
		kills++
	}
	heldAfterAll(t, old.dir, prefix, "10.9.0.2")
	if kills < 4 {
		t.Errorf("it was killed %d times: a start changes more than that", kills)
	}
	old.holder.kill()
	heldAfterAll(t, old.dir, prefix)
}

// heldAfterAll starts a service on a state, and checks that it gives out all addresses but some.
func heldAfterAll(t *testing.T, state, prefix string, held ...string) {
	t.Helper()
	s, err := listen(filepath.Join(folder(t), "s"), server.Config{Networks: networks(t, "default="+prefix), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	c := open(t, s.path)
	defer c.Close()
	for range 5 - len(held) {
		if l := allocate(t, c, network.Request{}); slices.Contains(held, l.Addresses[0].Addr().String()) {
			t.Errorf("%v is given out, and is held", l.Addresses)
		}
	}
}

func TestKilledAtAnyChangeOfItsStateAServiceLosesNoLease(t *testing.T) {
	for _, test := range []struct {
		name  string
		more  []string
		kills int // at least: two leases and a release change that often
	}{
		{"and only appends", nil, 4},
		{"and copies its record", []string{"-1000", "1"}, 12}, // with whatever is over
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			kills := 0
			for n := 1; killedAt(t, n, test.more); n++ {
				kills++
			}
			if kills < test.kills {
				t.Errorf("it was killed %d times, want at least %d", kills, test.kills)
			} else {
				t.Logf("it was killed at each of %d changes", kills)
			}
		})
	}
}

// killedAt kills a service at its n-th change of its state, and checks that no lease is lost. It returns false if there are fewer changes.
func killedAt(t *testing.T, n int, more []string) bool {
	t.Helper()
	const prefix = "10.9.0.0/29"
	dir := folder(t)
	tr := trapped(t, n, false, dir+"/s", dir+"/state", "default="+prefix, more...)
	if line, _ := tr.child.stdout.ReadString('\n'); !strings.HasPrefix(line, "ready <nil>") {
		t.Fatalf("it says %q", line)
	}
	first, second := run(t, "holder", dir+"/s"), run(t, "holder", dir+"/s")
	a, before := first.allocate(order{Hostname: "a"}), second.allocate(order{Hostname: "before"})
	record := dir + "/state/leases.log"
	begun := headOf(record)
	tr.armed.Store(true)
	b := second.order(order{Do: "allocate", Hostname: "b"})
	released := first.order(order{Do: "release", Lease: a.Lease})
	c := first.order(order{Do: "allocate", Hostname: "c", Witness: first.linger("linger").PID()})
	if more != nil {
		until(t, "the record is copied, or the service killed", func() bool { return tr.killed() || headOf(record) != begun })
	}
	tr.child.kill()
	<-tr.over
	held := []string{before.Address.Addr().String()}
	if released.Error != nil && !released.Error.Sent { // the release never left
		held = append(held, a.Address.Addr().String())
	}
	for _, got := range []answer{b, c} {
		if got.Error == nil {
			held = append(held, got.Address.Addr().String())
		}
	}
	checkHeld(t, dir+"/state", prefix, held)
	first.end()
	second.end()
	heldAfterAll(t, dir+"/state", prefix)
	return tr.killed()
}

// headOf returns the first line of a record, by which one that was written anew is another.
func headOf(path string) string {
	text, _ := os.ReadFile(path)
	head, _, _ := strings.Cut(string(text), "\n")
	return head
}

// checkHeld starts a service on a state whose holders live, and checks that it gives out none of their addresses.
func checkHeld(t *testing.T, state, prefix string, held []string) {
	t.Helper()
	s, err := listen(filepath.Join(folder(t), "s"), server.Config{Networks: networks(t, "default="+prefix), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	c := open(t, s.path)
	defer c.Close()
	for i := range info(t, c).Free {
		l := allocate(t, c, network.Request{Preferred: addrs(held[i%uint64(len(held))])})
		if slices.Contains(held, l.Addresses[0].Addr().String()) {
			t.Errorf("%v is given out, and is held", l.Addresses)
		}
	}
}

func TestNoSingleWriteGrowsWithTheLeasesHeld(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	tr := trapped(t, 0, true, dir+"/s", dir+"/state", "default=10.9.0.0/16", "0", "64")
	if line, _ := tr.child.stdout.ReadString('\n'); !strings.HasPrefix(line, "ready <nil>") {
		t.Fatalf("it says %q", line)
	}
	path := dir + "/state/leases.log"
	lines := func() int { text, _ := os.ReadFile(path); return bytes.Count(text, []byte("\n")) }
	var all []*client.Session
	var last *network.Lease
	const sessions, each = 8, 200
	for range sessions {
		c := open(t, dir+"/s")
		for range each {
			last = allocate(t, c, network.Request{})
		}
		all = append(all, c)
	}
	before := headOf(path)
	if err := last.Release(t.Context()); err != nil { // it was written anew when it had two lines, and has more than twice that
		t.Fatal(err)
	}
	until(t, "the record is written anew", func() bool { return headOf(path) != before })
	if n := lines(); n < sessions*each {
		t.Errorf("it has %d lines, and %d leases are held", n, sessions*each-1)
	}
	for _, c := range all[1:] { // many leases end at the same time
		c.Close()
	}
	self, err := process.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "their end is written down", func() bool {
		text, _ := os.ReadFile(path)
		holds, damage := server.ReadLines(text, self.Boot)
		return damage == nil && len(holds) == each
	})
	if most := tr.most.Load(); most > 65*600 {
		t.Errorf("%d bytes are stored at once, want no more than 65 leases have", most)
	} else {
		t.Logf("at most %d bytes are stored at once", most)
	}
}

// What was answered is in the record at any moment, also while that is copied some leases at a time and these come and go.
func TestARecordThatIsCopiedLosesNothing(t *testing.T) {
	leavesNothing(t)
	losesNothing(t, "0", fmt.Sprint(1+rand.IntN(4)))
}

// And while it only grows, by one store each time.
func TestARecordThatGrowsLosesNothing(t *testing.T) {
	leavesNothing(t)
	losesNothing(t, "1000000", "64")
}

// losesNothing kills services that copy their records as server.Copy is told, while leases come and go, and checks that the next ones know them.
func losesNothing(t *testing.T, slack, step string) {
	t.Helper()
	rounds := 4
	if *long {
		rounds = 100
	}
	for range rounds {
		dir := folder(t)
		s := run(t, "copying", dir+"/s", dir+"/state", "default=10.9.0.0/24", slack, step)
		held := comeAndGo(t, dir+"/s", s)
		next := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: dir + "/state"})
		found := map[string]string{}
		for _, l := range list(t, open(t, next.path)) {
			found[l.ID] = l.Addresses[0]
		}
		for id, address := range held {
			if found[id] != address {
				t.Errorf("lease %s of %s is lost: there is %q", id, address, found[id])
			}
		}
		if len(held) == 0 {
			t.Error("nothing was held")
		}
	}
}

// comeAndGo allocates and releases from many sessions until the service is killed, and returns what was held then for sure: addresses by lease.
func comeAndGo(t *testing.T, path string, s *child) map[string]string {
	t.Helper()
	var mu sync.Mutex
	held := map[string]string{}
	var clients sync.WaitGroup
	changes := make(chan struct{}, 1<<20)
	for range 8 {
		c := open(t, path)
		clients.Go(func() {
			var mine []*network.Lease
			for {
				if len(mine) > 0 && rand.IntN(20) < len(mine) {
					i := rand.IntN(len(mine))
					mu.Lock()
					delete(held, mine[i].ID)
					mu.Unlock()
					if mine[i].Release(t.Context()) != nil {
						return
					}
					mine = slices.Delete(mine, i, i+1)
				} else {
					l, err := network.Allocate(t.Context(), c, network.Request{})
					if err != nil {
						return
					}
					mu.Lock()
					held[l.ID] = l.Addresses[0].String()
					mu.Unlock()
					mine = append(mine, l)
				}
				changes <- struct{}{}
			}
		})
	}
	for range 500 + rand.IntN(500) {
		<-changes
	}
	s.kill()
	clients.Wait()
	return held
}
