package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// unixPrefix marks the path of a Unix socket.
const unixPrefix = "unix:"

// Check checks that metrics could be served at a place: unix:PATH, or HOST:PORT. It returns the place with an absolute path. It fails with wire.Malformed.
func Check(place string) (string, error) {
	if at, isPath := strings.CutPrefix(place, unixPrefix); isPath && at != "" {
		at, err := filepath.Abs(at)
		if err != nil {
			return "", err
		}
		return unixPrefix + at, socket.CheckPath(at)
	}
	if _, port, err := net.SplitHostPort(place); err != nil || port == "" {
		return "", wire.Errorf(wire.Malformed, "metrics at %q: want unix:PATH or HOST:PORT, as 127.0.0.1:9464", wire.Printable(place, 128))
	}
	return place, nil
}

// Listen listens at a place that Check has returned. A Unix socket is for this user and root alone, in a folder in which nobody else can replace it; one that a
// process has left behind which is gone is replaced. It fails with wire.Conflict if somebody listens there, or if there is something else.
func Listen(place string) (net.Listener, error) {
	at, isPath := strings.CutPrefix(place, unixPrefix)
	if !isPath {
		l, err := net.Listen("tcp", place)
		if err != nil {
			return nil, fmt.Errorf("serve metrics at %s: %w", place, err)
		}
		return l, nil
	}
	if err := socket.CheckFolder(filepath.Dir(at)); err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	if err := removeStale(at); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return onlyOwn(raw) }}
	l, err := config.Listen(context.Background(), "unix", at)
	if err != nil {
		return nil, fmt.Errorf("serve metrics at %s: %w", at, err)
	}
	return l, nil
}

// onlyOwn has a socket that is not bound yet get mode 0600 when it is: see unix_bind_bsd in the kernel's net/unix/af_unix.c. So there is no moment at which others
// may connect to it.
func onlyOwn(raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return failed
}

// removeStale removes a socket at which nobody listens.
func removeStale(at string) error {
	info, err := os.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the socket of metrics: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return wire.Errorf(wire.Conflict, "%s is not a socket: remove it, or choose another path for metrics", at)
	}
	conn, err := net.Dial("unix", at)
	if err == nil {
		conn.Close()
		return wire.Errorf(wire.Conflict, "somebody listens at %s: choose another path for metrics", at)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("find out whether somebody listens at %s: %w", at, err)
	}
	if err := os.Remove(at); err != nil {
		return fmt.Errorf("remove a stale socket of metrics: %w", err)
	}
	return nil
}

// A bounded listener accepts only so many connections at a time.
type bounded struct {
	net.Listener
	places chan struct{} // has one for each connection
	closed chan struct{}
	once   sync.Once // of closing
}

func newBounded(l net.Listener, most int) *bounded {
	return &bounded{Listener: l, places: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a place before it accepts a connection.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: conn, leave: sync.OnceFunc(func() { <-b.places })}, nil
}

// Close has Accept return.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// A placed connection gives its place back when it is closed.
type placed struct {
	net.Conn
	leave func()
}

func (p *placed) Close() error {
	defer p.leave()
	return p.Conn.Close()
}
