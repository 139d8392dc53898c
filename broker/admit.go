package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// What a user may have of the broker is counted in quotas; whose a connection is, is known before anything is done for it. Root and the broker's user have shares of their own,
// which others cannot take: so an operator gets in. A program that the broker has started has a place of its own: so it can register again whatever the others of its user do.

// openFiles is how many descriptors the broker may have open.
func openFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<20 {
		return 1 << 20
	}
	return int(limit.Cur)
}

// readQuotas reads what each user may have. With a problem the limits stay.
func (b *Broker) readQuotas() (problems []ReloadProblem) {
	if b.conf.Quotas == nil {
		return nil
	}
	limits, wrong := b.conf.Quotas()
	for _, p := range wrong {
		problems = append(problems, ReloadProblem{File: p.File, Line: p.Line, Key: p.Key, Rule: p.Rule})
		b.log.Error("the quotas stay as they are", "err", p)
	}
	if len(wrong) == 0 {
		b.quotas.Limit(limits.Within(b.files))
	}
	return problems
}

// spareFiles is how many descriptors are left to root and the broker's user, and to what is under way, when all others are taken.
const spareFiles = 8

// startFiles is how many descriptors a start takes at most until its program is executed. One that would take the last ones is put off.
const startFiles = 12

// admit begins to serve a connection, or refuses it at once and reports false. It is called where connections are accepted, and waits for nothing.
func (b *Broker) admit(a arrival) bool {
	err := b.charge(a)
	if err == nil {
		b.receive(a.taken())
		return true
	}
	if p := b.programs.find(int(a.peer.Pid)); p != nil && p.reserve() {
		a = a.taken()
		b.work.Go(func() { b.welcomeProgram(a, p, err) })
		return true
	}
	b.turnAway(a, err)
	return false
}

// receive begins to serve a connection that was charged for: an open that waits for nothing is done with here, by when its frame has mostly come.
func (b *Broker) receive(a arrival) {
	peer, err := a.identify()
	var f wire.Frame // of no kind: it has not come
	if err == nil {
		f, _ = socket.ReadNow(a.file)
	}
	if err != nil || !b.openAtOnce(a, peer, f) {
		b.work.Go(func() { b.welcome(a, peer, f, err) })
	}
}

// serveAt accepts who connects at a door until it is closed, opens a door of their own for those it lets in, and is slow with whom it refuses.
func (b *Broker) serveAt(d *door) {
	for {
		a, err := d.accept(b.turnAway)
		if err != nil {
			return
		}
		if !b.admit(a) {
			d.brake.Wait(d.done)
		} else if b.trusted(a.peer.Uid) || b.self.UID == 0 && !process.UnmappedUser(a.peer.Uid) { // to whom nobody but root can give a file
			b.letIn(a.peer.Uid)
		}
	}
}

// letIn opens a door for a user who has none.
func (b *Broker) letIn(uid uint32) {
	d, err := b.doors.enter(uid)
	if err != nil {
		b.limits.warn("a user has no socket of its own, and waits behind others", "uid", uid, "err", err)
	}
	if d != nil {
		b.work.Go(func() {
			b.serveAt(d)
			d.reserve.Close() // accept may have made another one
		})
	}
}

// charge charges a user for a connection. A new descriptor has the lowest number that is free: so its number says how many there are at least, and the last ones are for no stranger.
func (b *Broker) charge(a arrival) error {
	if a.fd >= b.files-spareFiles && !b.trusted(a.peer.Uid) {
		return unix.EMFILE
	}
	return b.quotas.Charge(a.peer.Uid, quota.Opens, quota.Connections)
}

// turnAway refuses a connection before its first frame has come.
func (b *Broker) turnAway(a arrival, err error) {
	err = scarce(err)
	a.refuse(err)
	b.overQuota(Event{}, a.client(), err)
}

// overQuota counts, tells and logs a refusal, if it is one for a limit. It is called when the peer has its answer.
func (b *Broker) overQuota(on Event, client wire.Process, err error) {
	if wire.CodeOf(err) != wire.OverQuota {
		return
	}
	on.Kind, on.Client = EventOverQuota, &client
	b.events.refused(on, err)
	b.limits.warn("over quota", "peer", client.PID, "uid", client.UID, "code", wire.OverQuota, "err", err)
}

// scarce makes a want of descriptors, or of memory for them, what it is for who is refused: a limit that passes. Any other error it returns as it is.
func scarce(err error) error {
	if wire.CodeOf(err) != wire.Internal || !scarcity(err) {
		return err
	}
	e := wire.Errorf(wire.OverQuota, "the broker has no descriptor left (%v): try again", errnoOf(err))
	e.Retry = queueRetry
	return e
}

// scarcity reports whether an error says that descriptors, or memory for them, are wanting: open(2), unix(7).
func scarcity(err error) bool {
	switch errnoOf(err) {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ETOOMANYREFS:
		return true
	}
	return false
}

func errnoOf(err error) syscall.Errno {
	errno, _ := errors.AsType[syscall.Errno](err)
	return errno
}

// welcome reads a connection's first frame, unless f is it and so has a kind, and does what it asks for. With err it is refused.
func (b *Broker) welcome(a arrival, peer party, f wire.Frame, err error) {
	conn, unmade := a.conn()
	err = cmp.Or(unmade, err)
	if err == nil && f.Kind == 0 {
		f, err = b.firstFrame(conn)
	}
	b.quotas.Discharge(a.peer.Uid, quota.Connections)
	b.begin(conn, peer, f, err)
}

// welcomeProgram is welcome for a program that the broker has started, whose user is over a limit. It may register, and nothing else; whose number is a program's and who is
// another gets the refusal.
func (b *Broker) welcomeProgram(a arrival, p *program, over error) {
	peer, err := a.identify()
	conn, unmade := a.conn()
	err = cmp.Or(unmade, err)
	if err == nil && !p.life.is(peer.handle) {
		err = over
	}
	var f wire.Frame
	if err == nil {
		f, err = b.firstFrame(conn)
	}
	if err == nil && f.Kind != wire.KindRegister {
		err = over
	}
	p.leave() // what begins may last as long as the program
	b.begin(conn, peer, f, err)
}

// begin does what the first frame of a connection asks for.
func (b *Broker) begin(conn *net.UnixConn, peer party, f wire.Frame, err error) {
	switch {
	case err != nil:
		err = scarce(err)
	case f.Kind == wire.KindOpen:
		b.open(conn, peer, f.Body)
		return
	case f.Kind == wire.KindRegister:
		b.register(conn, peer, f.Body, nil)
		return
	default:
		err = wire.Errorf(wire.Malformed, "the first frame is a %v: want open or register", f.Kind)
	}
	peer.handle.Close()
	if conn != nil {
		b.refuse(conn, err)
	}
	b.overQuota(Event{}, peer.Process, err)
}

// firstFrame reads the first frame of a connection, within its time.
func (b *Broker) firstFrame(conn *net.UnixConn) (wire.Frame, error) {
	conn.SetDeadline(time.Now().Add(firstFrameWait))
	defer context.AfterFunc(b.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	f, files, err := socket.ReadFrame(conn)
	socket.Discard(files)
	return f, err
}

// A party is who is at the other end of a connection.
type party struct {
	wire.Process
	groups []uint32        // supplementary ones
	handle *process.Handle // nil where the kernel gives none
}

// noGroup is a gid that no group has, see setresgid(2).
const noGroup = 1<<32 - 1

// identify takes the peer's identity from the socket of an arrival that was taken: all that is decided about it is decided on that. Its pid is 0 if it is in a pid namespace that is not
// below the broker's: it is let in, by its user, and known by its handle alone. One whose user may not be mapped in the broker's user namespace is refused, unless it is the broker's own:
// nobody knows who it is. A group of that kind counts for no rule.
func (a arrival) identify() (party, error) {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return party{Process: a.client()}, err
	}
	h, cred, err := process.FromPeer(raw)
	if err != nil && cred.PID != 0 {
		return party{Process: a.client()}, fmt.Errorf("identify a peer: %w", err)
	}
	if own := int(cred.UID) == os.Geteuid() && h != nil && h.SameUser(); process.UnmappedUser(cred.UID) && !own {
		h.Close()
		return party{Process: a.client()}, wire.Errorf(wire.NotPermitted,
			"the user of process %d is not mapped in the broker's user namespace, or is its user %d: the kernel shows both alike", cred.PID, cred.UID)
	}
	p := party{Process: wire.Process{PID: cred.PID, UID: cred.UID, GID: cred.GID}, groups: slices.DeleteFunc(cred.Groups, process.UnmappedGroup), handle: h}
	if process.UnmappedGroup(p.GID) {
		p.GID = noGroup
	}
	if h != nil {
		p.Program = h.Program()
	}
	return p, nil
}

// refuse answers with err and closes the connection. A peer that went away is told nothing.
func (b *Broker) refuse(conn *net.UnixConn, err error) {
	defer socket.Drop(conn)
	e := wire.AsError(err).Bounded()
	if e.Code == wire.Internal { // of the socket: the peer is gone or too slow
		b.log.Debug("connection without a first frame", "err", err)
		return
	}
	e.Origin = wire.Broker
	conn.SetDeadline(time.Now().Add(answerWait))
	if f, err := wire.NewFrame(wire.KindRefused, 0, e); err == nil {
		socket.WriteFrame(conn, f)
	}
}
