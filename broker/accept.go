package broker

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// An arrival is a connection that was accepted, and for which nothing else has been done. It is a bare descriptor, so that to refuse it costs less than to connect: the broker
// must be quicker than those who flood it.
type arrival struct {
	fd   int
	file *os.File   // of fd, once something is to be done for it
	peer unix.Ucred // the process that has connected; with unknownUID where the kernel does not tell
}

// taken is the arrival for whom something is to be done.
func (a arrival) taken() arrival {
	a.file = os.NewFile(uintptr(a.fd), "connection")
	return a
}

// conn makes a connection of an arrival that was taken, and is used up by that. It fails where there is no descriptor for a copy, and has told the peer.
func (a arrival) conn() (*net.UnixConn, error) {
	defer a.file.Close()
	conn, err := socket.FromFile(a.file)
	if err != nil {
		a.answer(scarce(err))
	}
	return conn, err
}

// client is the peer for people.
func (a arrival) client() wire.Process {
	return wire.Process{PID: int(a.peer.Pid), UID: a.peer.Uid, GID: a.peer.Gid}
}

// refuse answers with err and closes the connection.
func (a arrival) refuse(err error) {
	a.answer(err)
	socket.DropFD(a.fd)
}

// answer answers with a refusal. It waits for nothing: the few bytes are the first on their socket. A peer that is gone is told nothing.
func (a arrival) answer(err error) {
	e := wire.AsError(err).Bounded()
	e.Origin = wire.Broker
	if f, err := wire.NewFrame(wire.KindRefused, 0, e); err == nil {
		unix.Sendto(a.fd, f.Append(nil), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
	}
}

const (
	acceptPauseFirst = 10 * time.Millisecond
	acceptPauseMost  = time.Second
)

// accept returns the next connection. Where it cannot, for want of descriptors or memory, it has a client turned away for that and goes on.
// It fails only when the door is stopped.
func (d *door) accept(turnAway func(arrival, error)) (arrival, error) {
	for pause := acceptPauseFirst; ; pause = min(2*pause, acceptPauseMost) {
		a, err := d.acceptOne()
		if err == nil || d.stopped() {
			return a, err
		}
		d.reserve.Close()
		d.file.SetReadDeadline(time.Now().Add(pause)) // also the pause
		turned, again := d.acceptOne()
		d.reserve, _ = os.Open(os.DevNull)
		switch {
		case again == nil && d.reserve != nil: // there are descriptors again since
			d.file.SetReadDeadline(time.Time{})
			return turned, nil
		case again == nil:
			turnAway(turned, err)
			d.reserve, _ = os.Open(os.DevNull)
		case !errors.Is(again, os.ErrDeadlineExceeded): // the descriptor in reserve was taken by something else: accept fails at once, and did not pause
			time.Sleep(acceptPauseFirst)
		}
		d.file.SetReadDeadline(time.Time{})
	}
}

// acceptOne waits for a connection.
func (d *door) acceptOne() (a arrival, err error) {
	failed := d.raw.Read(func(listening uintptr) bool {
		for {
			a.fd, _, err = unix.Accept4(int(listening), unix.SOCK_CLOEXEC)
			if err != unix.EINTR && err != unix.ECONNABORTED {
				return err != unix.EAGAIN
			}
		}
	})
	if failed != nil {
		return arrival{}, failed
	}
	if err != nil {
		return arrival{}, os.NewSyscallError("accept4", err)
	}
	if peer, err := unix.GetsockoptUcred(a.fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
		a.peer = *peer
	} else {
		a.peer = unix.Ucred{Uid: unknownUID, Gid: unknownUID}
	}
	return a, nil
}

// unknownUID is nobody's number, see setreuid(2).
const unknownUID = 1<<32 - 1
