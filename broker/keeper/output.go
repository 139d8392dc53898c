package keeper

import (
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// chunk is how much is read of a pipe at a time, in bytes: all that it can hold by default.
	chunk = 64 << 10
	// maxTail and maxTailLines bound what is kept of standard error for people, in bytes and lines.
	maxTail      = 4 << 10
	maxTailLines = 20
)

// An output copies what the program writes to where it goes. One goroutine does all of it, so that each file is written by one.
type output struct {
	streams []*stream
	done    chan struct{} // closed when all pipes are at their end
	tail    tail
}

// A stream is one pipe that the program writes to.
type stream struct {
	fd   int // -1: at its end
	sink *sink
	tail *tail // nil: none is kept
}

// copyOutput copies from two pipes until both are at their end.
func copyOutput(o order, stdout, stderr int) *output {
	out := &output{done: make(chan struct{})}
	first := newSink(o.Stdout, o)
	second := first
	if o.Stderr != o.Stdout {
		second = newSink(o.Stderr, o)
	}
	out.streams = []*stream{{fd: stdout, sink: first}, {fd: stderr, sink: second, tail: &out.tail}}
	go out.run() // ends with the process at the latest
	return out
}

func (o *output) run() {
	defer close(o.done)
	buffer := make([]byte, chunk)
	for {
		open := o.poll()
		if len(open) == 0 {
			return
		}
		for _, s := range open {
			s.copy(buffer)
		}
	}
}

// poll waits until a pipe has something to read or is at its end, and returns those. It returns none when all have been at their end.
func (o *output) poll() (ready []*stream) {
	fds := make([]unix.PollFd, len(o.streams))
	left := false
	for i, s := range o.streams {
		fds[i] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN} // -1 is passed over
		left = left || s.fd >= 0
	}
	for left && len(ready) == 0 {
		if _, err := unix.Poll(fds, -1); err != nil {
			continue // EINTR; nothing else can be with these
		}
		for i, s := range o.streams {
			if s.fd >= 0 && fds[i].Revents != 0 {
				ready = append(ready, s)
			}
		}
	}
	return ready
}

// copy copies once. It does not wait, as there is something to read.
func (s *stream) copy(buffer []byte) {
	n, err := unix.Read(s.fd, buffer)
	if err == unix.EINTR {
		return
	}
	if err != nil || n == 0 {
		unix.Close(s.fd)
		s.fd = -1
		return
	}
	if s.tail != nil {
		s.tail.add(buffer[:n])
	}
	s.sink.write(buffer[:n])
}

// wait waits until all that was written has been copied, or for d.
func (o *output) wait(d time.Duration) {
	select {
	case <-o.done:
	case <-time.After(d):
	}
}

// lastLines returns the last lines of standard error.
func (o *output) lastLines() []string { return o.tail.lines() }

// A tail keeps the end of a text.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b[max(0, len(b)-maxTail):]...)
	if over := len(t.end) - maxTail; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
	}
}

// lines returns the last lines. The first may lack its beginning.
func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimRight(string(t.end), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-maxTailLines):]
}
