package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	leases "github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// A tenancy is a lease that a lessee has, from its request to its end.
type tenancy struct {
	*caller
	s       *client.Session
	lease   *leases.Lease
	claim   claim
	witness *witness // nil: none
}

// lease is one turn of a lessee: a session, a lease on it for a while, and one of its ends.
func (c *caller) lease() {
	s := c.open(leases.Endpoint)
	if s == nil {
		return
	}
	t := &tenancy{caller: c, s: s}
	defer func() {
		t.claim.release()
		t.s.Close()
		t.witness.end()
	}()
	if c.rnd.IntN(4) == 0 {
		t.witness = c.newWitness()
	}
	if t.allocate() != nil {
		return
	}
	t.use()
	if t.lost() {
		t.restore()
		return
	}
	t.leave()
}

func (t *tenancy) allocate() error {
	r := leases.Request{Network: t.draw(leases.DefaultNetwork, leases.DefaultNetwork, "lab")}
	if t.rnd.IntN(2) == 0 {
		r.Hostname = fmt.Sprintf("host-%d", t.rnd.IntN(400))
	}
	if t.witness != nil {
		r.Witness = t.witness.pidfd
	}
	return t.do(allocateAct, t.id(), func(ctx context.Context) (err error) {
		t.lease, err = leases.Allocate(ctx, t.s, r)
		if err == nil {
			t.take()
		}
		return err
	})
}

// take claims the lease's addresses, also for the witness.
func (t *tenancy) take() {
	u := user{Who: fmt.Sprintf("crowd %d, client %d, lease %s", t.gang.number, t.number, t.lease.ID), Process: t.self}
	if t.witness != nil {
		u.Witness = t.witness.id
	}
	t.claim = t.place.claim(u, t.lease.Addresses)
	if t.witness != nil {
		t.witness.give(t.claim)
	}
	if t.lies == lieSquat { // it uses an address that it was not given, too
		next := netip.PrefixFrom(t.lease.Addresses[0].Addr().Next(), t.lease.Addresses[0].Bits())
		t.claim.files = append(t.claim.files, t.place.claim(u, []netip.Prefix{next}).files...)
	}
}

func (t *tenancy) draw(list ...string) string { return list[t.rnd.IntN(len(list))] }

// use holds the lease for a while, or as long as all hold what they have.
func (t *tenancy) use() {
	for range 10 {
		if t.rest(100 * time.Millisecond); t.lost() || !t.working() {
			break
		}
	}
	for t.holding() && !t.lost() && t.s.Call(context.Background(), leases.MethodNetworks, struct{}{}, nil) == nil {
		h := holding{Session: t.s.ID(), Endpoint: leases.Endpoint, Lease: t.lease.ID, Hostname: t.lease.Hostname}
		for _, a := range t.lease.Addresses {
			h.Addresses = append(h.Addresses, a.String())
		}
		t.wait(hold, &h)
	}
}

func (t *tenancy) lost() bool {
	select {
	case <-t.s.Done():
		return true
	default:
		return false
	}
}

// leave gives the lease back: by releasing it, or with the session.
func (t *tenancy) leave() {
	t.claim.release()
	if t.rnd.IntN(2) == 0 {
		t.do(releaseAct, t.id(), t.lease.Release)
	}
}

// restore does what a runtime does whose network service was lost, and which lives: it takes the lease back, or releases it by name.
func (t *tenancy) restore() {
	if t.rnd.IntN(2) == 0 && t.reclaim() == nil {
		t.use()
		if !t.lost() {
			t.leave()
			return
		}
	}
	t.witness.kill()
	t.witness = nil
	t.claim.release()
	for t.evict(t.lease.ID) != nil {
		t.rest(200 * time.Millisecond)
	}
}

func (t *tenancy) reclaim() error {
	var file *os.File
	if t.witness != nil {
		file = t.witness.pidfd
	}
	lost := t.lease
	if t.witness == nil {
		t.claim.release() // a reclaim that comes too late for who has given it up ends the lease
	}
	err := t.do(reclaimAct, t.id(), func(ctx context.Context) error {
		l, s, err := leases.Reclaim(ctx, lost, file, client.Options{Socket: t.socket(), Title: "reclaim"})
		if err == nil {
			t.s.Close()
			t.s, t.lease = s, l
		}
		return err
	})
	if err == nil && t.witness == nil {
		t.take()
	}
	switch {
	case err == nil && (t.lease.ID != lost.ID || !slices.Equal(t.lease.Addresses, lost.Addresses) || t.lease.MAC != lost.MAC):
		t.find(lostLease, "lease %s with %v is taken back as %s with %v", lost.ID, lost.Addresses, t.lease.ID, t.lease.Addresses)
	case errors.Is(err, wire.NotFound):
		t.find(lostLease, "lease %s with %v of the living: %v", lost.ID, lost.Addresses, err)
	}
	return err
}

// evict releases a lease that no session holds any more by its name. Nobody uses it.
func (t *caller) evict(id string) error {
	s := t.open(leases.Endpoint)
	if s == nil {
		return wire.Unavailable
	}
	defer s.Close()
	err := t.do(evictAct, t.id(), func(ctx context.Context) error {
		return leases.Release(ctx, s, id)
	})
	if errors.Is(err, wire.NotFound) {
		return nil // it was over when its witness was, or an evict before has come
	}
	return err
}

// forget releases what the network service has written down for this process, which nobody of it uses: it was killed before it could say so, or before it had
// heard of the end. As long as this process lives, it would be kept. It is for a time in which no lessee has lost its session.
func (c *caller) forget() {
	for done := false; !done; c.rest(100 * time.Millisecond) {
		s := c.open(leases.Endpoint)
		if s == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), actTime)
		all, err := leases.List(ctx, s, leases.ListRequest{})
		cancel()
		s.Close()
		for _, l := range all {
			if l.State == leases.StateOrphaned && l.Holder.PID == os.Getpid() {
				err = errors.Join(err, c.evict(l.ID))
			}
		}
		done = err == nil
	}
}

// A witness is a process that a lease waits for.
type witness struct {
	cmd   *exec.Cmd
	id    process.ID
	pidfd *os.File
	link  *os.File // it ends some time after this
}

// newWitness starts one; nil if that fails, as it may when this process has too much open.
func (c *caller) newWitness() *witness {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "link"), os.NewFile(uintptr(pair[1]), "link")
	defer theirs.Close()
	program, err := os.Executable()
	if err != nil {
		return nil
	}
	pidfd := -1
	cmd := exec.Command(program, string(c.place), strconv.Itoa(c.rnd.IntN(300)))
	cmd.Args[0] = "witness"
	cmd.Env = append(os.Environ(), roleVariable+"=witness")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &pidfd}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil
	}
	w := &witness{cmd: cmd, pidfd: os.NewFile(uintptr(pidfd), "witness"), link: ours}
	w.id, _ = process.Identify(cmd.Process.Pid) // it was not waited for
	go cmd.Wait()
	return w
}

// give gives it the locks of addresses, which it keeps for as long as it lives.
func (w *witness) give(c claim) {
	var fds []int
	for _, f := range c.files {
		fds = append(fds, int(f.Fd()))
	}
	raw, err := w.link.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = unix.Sendmsg(int(fd), []byte{1}, unix.UnixRights(fds...), nil, 0) })
	}
	if err != nil && w.id.Alive() {
		fmt.Fprintln(os.Stderr, "give a witness its locks:", err)
	}
}

// end lets it end in its own time.
func (w *witness) end() {
	if w != nil {
		w.link.Close()
		w.pidfd.Close()
	}
}

// kill ends it, and returns when it is gone.
func (w *witness) kill() {
	if w == nil {
		return
	}
	w.cmd.Process.Kill()
	for w.id.Alive() {
		time.Sleep(time.Millisecond)
	}
	w.end()
}

// playWitness keeps what it is given until some time after the other end of its link is closed. Its second argument is that time in milliseconds.
func playWitness(args []string) error {
	linger, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for text, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*4)); ; {
		n, _, _, _, err := unix.Recvmsg(3, text, rights, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			break
		}
	}
	time.Sleep(time.Duration(linger) * time.Millisecond)
	return nil
}
