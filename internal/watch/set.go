// Package watch tells when the other end of a socket, or a process, is gone, and when something comes on a socket.
package watch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Kind says what is watched, and so what counts as gone: what the callback tells.
type Kind int

const (
	// Socket is a connected Unix stream socket. It is gone when it is hung up both ways or has failed, which it
	// is as soon as the last descriptor of the other end was closed. Data that waits to be read does not matter.
	Socket Kind = iota
	// Process is a pidfd. The process is gone when it has exited, waited for or not.
	Process
	// Silence is a connected socket on which nothing comes. It is gone when something can be read: data, or that there will be none.
	Silence
)

// batch is how many events are taken from the kernel at a time.
const batch = 128

// A Set watches any number of sockets and processes at the price of one epoll descriptor and one goroutine, which
// blocks no thread while nothing happens. All methods may be called at any time by any goroutine.
//
// A callback runs once, and then its watch is over; one that was removed before does not run. Callbacks run one after the
// other, either on the Set's own goroutine or on one that is in Ask. They may call Add and Remove, but
// not Ask or Close, which wait for them. So these two must not be called under a lock that a callback takes.
type Set struct {
	file *os.File // the epoll descriptor, which Go's poller watches
	raw  syscall.RawConn
	done sync.WaitGroup // the Set's own goroutine

	// turn has one place: who has put its token there may take events and run their callbacks, and guards events.
	turn   chan struct{}
	events [batch]unix.EpollEvent

	mu     sync.Mutex
	closed bool
	last   uint64            // the number of the latest watch
	live   map[uint64]*Watch // by number: what has neither fired nor been removed
}

// A Watch is one socket or process in a Set. It goes from live to fired or removed, once, and stays there.
type Watch struct {
	set    *Set
	number uint64 // what the kernel gives back with an event; never used twice, as a descriptor is
	conn   syscall.RawConn
	gone   func()
}

// New returns an empty Set. The caller must close it.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", os.NewSyscallError("epoll_create1", err))
	}
	// Go's poller takes only descriptors that do not block.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch: %w", os.NewSyscallError("fcntl", err))
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	// A deadline is refused for what the poller did not take, because the user's limit of watches is reached.
	if err := errors.Join(err, file.SetReadDeadline(time.Time{})); err != nil {
		file.Close()
		return nil, fmt.Errorf("watch: %w", err)
	}
	s := &Set{file: file, raw: raw, turn: make(chan struct{}, 1), live: make(map[uint64]*Watch)}
	s.done.Go(s.run)
	return s, nil
}

// Add watches conn and calls gone once when it is gone, at once if it is so already: gone may run
// before Add has returned. A callback must be short, since all others wait for it.
//
// The owner of conn should remove the watch before it closes conn. If it closes conn first, gone never runs and Remove is still
// needed; and where another descriptor keeps the same socket open, adding that socket again may be refused.
// The error says that conn is closed, is in the Set already (EEXIST), cannot be watched (EPERM), that the
// user's limit of watches is reached (ENOSPC), or wraps os.ErrClosed for a closed Set.
func (s *Set) Add(conn syscall.RawConn, kind Kind, gone func()) (*Watch, error) {
	event, err := interest(kind)
	if err != nil {
		return nil, err
	}
	w := &Watch{set: s, conn: conn, gone: gone}
	if err := s.enter(w); err != nil {
		return nil, err
	}
	event.Fd, event.Pad = int32(uint32(w.number)), int32(uint32(w.number>>32))
	if err := s.control(conn, unix.EPOLL_CTL_ADD, &event); err != nil {
		s.take(w.number)
		return nil, fmt.Errorf("watch a descriptor: %w", err)
	}
	return w, nil
}

// interest returns the events that a kind is watched for. Each fires once, so that what is gone for ever is not
// reported for ever, also where it cannot be taken out of the epoll set.
func interest(kind Kind) (unix.EpollEvent, error) {
	switch kind {
	case Socket:
		return unix.EpollEvent{Events: unix.EPOLLHUP | unix.EPOLLERR | unix.EPOLLONESHOT}, nil
	case Process:
		return unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}, nil
	case Silence:
		return unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT}, nil
	}
	return unix.EpollEvent{}, fmt.Errorf("watch a descriptor: kind %d is not Socket, Process or Silence", kind)
}

// Remove ends a watch. It returns true if the callback has not run and never will, and false if the callback has run,
// is running or is about to, or the watch was over before. It may be called after the descriptor was closed.
func (s *Set) Remove(w *Watch) bool {
	if w.set != s || s.take(w.number) == nil {
		return false
	}
	s.forget(w)
	return true
}

// Ask runs the callbacks of everything that is gone at this moment, before it returns. Where others run callbacks
// meanwhile, it waits for them. So what has not been called back when Ask returns was not gone, by the kernel's
// word, at a time after Ask began. The error wraps os.ErrClosed, after Close; then nothing was asked.
func (s *Set) Ask() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	for {
		n, err := s.poll()
		if err != nil {
			return fmt.Errorf("ask what is gone: %w", err)
		}
		for _, event := range s.events[:n] {
			s.fire(event)
		}
		if n < len(s.events) {
			return nil
		}
	}
}

// Len returns how many watches are live.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}

// Close ends all watches, and returns when no callback is running and none will. What was watched stays open.
// Only the first call does anything; it returns nil.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	clear(s.live)
	s.mu.Unlock()
	err := s.file.Close()
	s.done.Wait()
	s.turn <- struct{}{} // those that were in Ask are out
	<-s.turn
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close a set of watches: %w", err)
	}
	return nil
}

// run calls Ask whenever something is gone, until the Set is closed.
func (s *Set) run() {
	for s.raw.Read(readable) == nil {
		if s.Ask() != nil {
			return
		}
	}
}

// readable reports whether events wait in the epoll descriptor. It takes none, since only Ask may.
func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds, 0)
	return n > 0
}

// poll takes events from the kernel without waiting, and returns how many.
func (s *Set) poll() (n int, err error) {
	closed := s.raw.Control(func(fd uintptr) {
		for {
			n, err = unix.EpollWait(int(fd), s.events[:], 0)
			if err != unix.EINTR {
				return
			}
		}
	})
	if closed != nil {
		return 0, os.ErrClosed
	}
	return max(n, 0), os.NewSyscallError("epoll_wait", err)
}

// fire runs the callback that event is for, unless its watch is over.
func (s *Set) fire(event unix.EpollEvent) {
	w := s.take(uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32)
	if w == nil {
		return
	}
	s.forget(w)
	w.gone()
}

// enter gives w its number, and makes it live.
func (s *Set) enter(w *Watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("watch a descriptor: the set: %w", os.ErrClosed)
	}
	s.last++
	w.number = s.last
	s.live[w.number] = w
	return nil
}

// take ends the watch of that number and returns it, or nil if it is over already.
func (s *Set) take(number uint64) *Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.live[number]
	delete(s.live, number)
	return w
}

// forget takes a watch that is over out of the epoll set. Only who took it calls this, so that a
// later watch of the same descriptor is never hit. If the descriptor is closed, the kernel has done it.
func (s *Set) forget(w *Watch) {
	_ = s.control(w.conn, unix.EPOLL_CTL_DEL, nil)
}

// control changes the epoll set, while conn cannot be closed and its number be given to another file.
func (s *Set) control(conn syscall.RawConn, op int, event *unix.EpollEvent) error {
	var err error
	closed := s.raw.Control(func(epoll uintptr) {
		connErr := conn.Control(func(fd uintptr) {
			err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(epoll), op, int(fd), event))
		})
		err = errors.Join(connErr, err)
	})
	if closed != nil {
		return os.ErrClosed
	}
	return err
}
