package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// give replies with as many descriptors as it is asked for.
func give(_ context.Context, m *session.Message) (any, error) {
	var n int
	if err := m.Decode(&n); err != nil {
		return nil, err
	}
	var reply carried
	for range n {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		reply.Files = append(reply.Files, f)
	}
	return reply, nil
}

// ask calls its caller, and tells it the code that this failed with.
func ask(ctx context.Context, m *session.Message) (any, error) {
	taken, err := give(ctx, m)
	if err != nil {
		return nil, err
	}
	message := taken.(carried)
	defer socket.CloseFiles(message.Files)
	s := session.FromContext(ctx)
	if err := s.Send(ctx, "told", message); err != nil {
		return nil, err
	}
	return string(wire.CodeOf(s.Call(ctx, "asked", message, nil))), nil
}

func TestDescriptorsBothWaysLeaveNothing(t *testing.T) {
	const at, files = 8, 5
	n := int64(4_000) // descriptors
	if *long {
		n = 100_000
	}
	h := handler{methods: methods{"swap": swap}}
	c, s := lanes(t, session.Config{Handler: h}, session.Config{Handler: h})
	mine := numberedFiles(t, files)
	defer socket.CloseFiles(mine)
	var want []os.FileInfo
	for _, f := range mine {
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, info)
	}
	before := len(descriptors())
	var passed atomic.Int64
	var all sync.WaitGroup
	for i := range at {
		from := []*session.Session{c, s}[i%2]
		all.Go(func() {
			for passed.Add(2*files) <= n {
				var got carried
				if err := from.Call(within(t, 30*time.Second), "swap", carried{Files: mine}, &got); err != nil || len(got.Files) != files {
					t.Errorf("%d descriptors, %v", len(got.Files), err)
					return
				}
				for i, f := range got.Files {
					if info, err := f.Stat(); err != nil || !os.SameFile(info, want[files-1-i]) {
						t.Errorf("descriptor %d is another, %v", i, err)
					}
				}
				socket.CloseFiles(got.Files)
			}
		})
	}
	all.Wait()
	until(t, "all are closed", func() bool { return len(descriptors()) <= before })
}

// room limits the open files of a process to those that it has and n more.
func room(t *testing.T, pid, n int) (undo func()) {
	t.Helper()
	limit := unix.Rlimit{}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	for low.Cur = 0; ; low.Cur++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, low.Cur)); err == nil {
			continue
		}
		if n--; n < 0 {
			break
		}
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		t.Fatal(err)
	}
	return func() { unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil) }
}

func openFilesOf(pid int) int {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return len(list)
}

func TestAtTheReceiversLimitOfOpenFilesAMessageFailsAlone(t *testing.T) {
	if !lane {
		return // a session without a lane carries no descriptors
	}
	c, child := withChild(t, usual)
	mine := numberedFiles(t, 4)
	defer socket.CloseFiles(mine)
	message := carried{Files: mine}
	swaps := func() error {
		var got carried
		err := c.Call(within(t, 10*time.Second), "swap", message, &got)
		socket.CloseFiles(got.Files)
		return err
	}
	if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
		t.Fatal(err)
	}
	before := openFilesOf(child.Process.Pid)
	closed := func() bool { return openFilesOf(child.Process.Pid) <= before }
	for left := range 4 {
		undo := room(t, child.Process.Pid, left)
		for range 100 { // more than the credit
			if err := swaps(); !errors.Is(err, wire.OverQuota) {
				t.Fatalf("a request, with room for %d of 4: %v, want %v", left, err, wire.OverQuota)
			}
			if err := c.Send(within(t, 10*time.Second), "ignore", message); err != nil {
				t.Fatalf("a one-way message: %v", err)
			}
		}
		if err := c.Call(within(t, 10*time.Second), "echo", "whole", nil); err != nil {
			t.Fatalf("the session is not whole: %v", err)
		}
		until(t, "what arrived is closed", closed)
		undo()
		if err := swaps(); err != nil {
			t.Fatalf("with room: %v", err)
		}
		until(t, "the replied ones are closed", closed)
	}
}

// A request whose descriptors were cut off is answered without its handler; that of a one-way message is told when it decodes.
func TestAMessageWhoseDescriptorsAreCutOffIsNotTakenForAWholeOne(t *testing.T) {
	var served atomic.Int64
	note := func(_ context.Context, m *session.Message) (any, error) {
		if err := m.Decode(&carried{}); !m.OneWay || !errors.Is(err, wire.OverQuota) {
			served.Add(1)
		}
		return nil, nil
	}
	p, begin := onLane(t, session.Config{Handler: handler{methods: methods{"note": note}}})
	s := begin()
	one, value := numbered(t, 1), carried{Files: []*os.File{os.Stdin}}
	defer one.Close()
	undo := room(t, os.Getpid(), 0)
	p.pass(built(t, wire.KindRequest, 0, 1, 1, asks(t, "note", value)), one)
	p.pass(built(t, wire.KindOneWay, 0, 0, 1, asks(t, "note", value)), one)
	p.pass(built(t, wire.KindFlush, 0, 2, 0, nil), nil)
	p.comes(s)
	undo()
	var h heard
	p.hear(&h, func(h *heard) bool { _, one := h.reply(1); _, two := h.reply(2); return one && two })
	f, _ := h.reply(1)
	if e, err := wire.DecodeError(f.Body); f.Flags != wire.FlagError || err != nil || e.Code != wire.OverQuota {
		t.Errorf("reply with flags %d: %q, want %v", f.Flags, f.Body, wire.OverQuota)
	}
	if n := served.Load(); n != 0 {
		t.Errorf("%d messages were served", n)
	}
}

func TestAtTheCallersLimitOfOpenFilesAReplyFailsAlone(t *testing.T) {
	if !lane {
		return
	}
	c, _ := withChild(t, usual)
	var got carried
	if err := c.Call(within(t, 10*time.Second), "give", 4, &got); err != nil {
		t.Fatal(err)
	}
	socket.CloseFiles(got.Files)
	before := len(descriptors())
	for left := range 4 {
		undo := room(t, os.Getpid(), left)
		var errs [2]error
		for range 100 {
			got := carried{}
			errs[0] = c.Call(within(t, 10*time.Second), "give", 4, &got)
			errs[1] = c.Call(within(t, 10*time.Second), "echo", "whole", nil)
			socket.CloseFiles(got.Files)
		}
		undo()
		if !errors.Is(errs[0], wire.OverQuota) || errs[1] != nil {
			t.Errorf("with room for %d of 4: %v, and then %v", left, errs[0], errs[1])
		}
		if n := len(descriptors()); n > before {
			t.Errorf("with room for %d of 4: %d descriptors are open, and before %d", left, n, before)
		}
	}
	if err := c.Call(within(t, 10*time.Second), "give", 4, &got); err != nil {
		t.Errorf("with room: %v", err)
	}
	socket.CloseFiles(got.Files)
}

// A user may have only so many descriptors on their way (ETOOMANYREFS), unless it is privileged.
func TestWhereTooManyDescriptorsAreOnTheirWayAMessageFailsAlone(t *testing.T) {
	if !lane {
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody whose descriptors nobody else has on their way")
	}
	const somebody, most, each = 54_321, 64, 8
	leavesNothing(t)
	a, b := sockets(t)
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: somebody, Gid: somebody}}
	child := startChild(t, b, as, fmt.Sprintf("%s=%d", filesVariable, most))
	defer func() {
		child.Process.Kill()
		<-child.reaped
		a.Close()
	}()
	p := &rawPeer{t: t, conn: a}
	const taken = most/each + 1 // beyond the limit by the last
	var h heard
	defer func() {
		for _, list := range h.files {
			socket.CloseFiles(list)
		}
	}()
	asked := func(id uint32, method string, n any) { // and answered, which is not read
		before := queued(t, a)
		p.send(built(t, wire.KindRequest, 0, id, 0, asks(t, method, n)))
		until(t, "it is answered", func() bool { return queued(t, a) > before })
	}
	read := func(id uint32) {
		p.hear(&h, func(h *heard) bool { _, done := h.reply(id); return done })
	}
	for id := range uint32(taken + 4) {
		asked(id+1, "give", each)
	}
	asked(50, "ask", each)
	read(50)
	for id := range uint32(taken + 4) {
		f, _ := h.reply(id + 1)
		if failed := f.Flags&wire.FlagError != 0; failed != (id >= taken) {
			t.Errorf("reply %d: flags %d, %q", id+1, f.Flags, f.Body)
		} else if failed {
			if e, err := wire.DecodeError(f.Body); err != nil || e.Code != wire.OverQuota {
				t.Errorf("reply %d: %v, %v", id+1, e, err)
			}
		}
	}
	if f, _ := h.reply(50); !strings.Contains(string(f.Body), string(wire.OverQuota)) {
		t.Errorf("a one-way message and a request of the child: %q", f.Body)
	}
	asked(60, "give", each)
	read(60)
	if f, _ := h.reply(60); f.Flags != 0 || len(h.files[60]) != each {
		t.Errorf("afterwards: flags %d, %q with %d descriptors", f.Flags, f.Body, len(h.files[60]))
	}
}

// queued returns how many bytes wait to be read.
func queued(t *testing.T, conn interface {
	SyscallConn() (syscall.RawConn, error)
}) (n int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A large reply whose descriptors cannot be sent is answered with an error, and its value is not sent for nothing.
func TestALargeReplyWhoseDescriptorsCannotBeSentFailsAlone(t *testing.T) {
	c, s := lanes(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"echo": echo,
		"large": func(context.Context, *session.Message) (any, error) {
			f := numbered(t, 0)
			f.Close()
			return carried{Text: strings.Repeat("x", 1<<20), Files: []*os.File{f}}, nil
		},
	}}})
	if err := c.Call(within(t, 5*time.Second), "large", nil, &carried{}); !errors.Is(err, wire.OverQuota) {
		t.Fatalf("%v, want %v", err, wire.OverQuota)
	}
	if err := c.Call(within(t, 5*time.Second), "echo", "whole", nil); err != nil {
		t.Errorf("the session is not whole: %v", err)
	}
	began := time.Now()
	if err := s.Drain(within(t, 9*time.Second), "done"); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("draining took %v: its value was still being sent", d)
	}
}

// A message may be on its way to the socket, and in no queue, when its session ends.
func TestDescriptorsOfAMessageThatMeetsTheEndOfItsSessionAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector closes files that nobody else does
	leavesNothing(t)
	files := numberedFiles(t, wire.MaxFiles)
	defer socket.CloseFiles(files)
	open := len(descriptors())
	for n := range 1000 {
		left, right := sockets(t)
		s := session.NewControl(left, session.Config{Opener: true})
		var both sync.WaitGroup
		both.Go(func() { s.Send(t.Context(), "take", carried{Files: files}) })
		both.Go(func() {
			for at := time.Now().Add(time.Duration(n%100) * time.Microsecond); time.Now().Before(at); { // no timer is that exact
			}
			s.Abort(wire.End{})
		})
		both.Wait()
		s.Wait()
		right.Close()
		if now := len(descriptors()); now > open {
			t.Fatalf("round %d: %d descriptors are left open", n, now-open)
		}
	}
}
