package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
)

// A manager is systemd, where that has started the broker: see sd_notify(3). Elsewhere nobody is told anything.
type manager struct{ log *slog.Logger }

// What it is told.
const (
	ready    = daemon.SdNotifyReady
	stopping = daemon.SdNotifyStopping
)

// reloading begins a reload, which ready ends. The time lets systemd tell which of several.
func reloading() []string {
	return []string{daemon.SdNotifyReloading, strings.TrimSpace(daemon.SdNotifyMonotonicUsec())}
}

// status is the line that systemctl status shows.
func status(services, skipped int) string {
	text := "STATUS=" + counted(services, "service")
	if skipped > 0 {
		text += fmt.Sprintf(", %d skipped", skipped)
	}
	return text
}

// tell sends one message. Serving does not depend on it.
func (m manager) tell(lines ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		m.log.Warn("systemd was not told how the broker is", "err", err)
	}
}

// inherited returns the broker's socket if systemd listens at it and has passed it on, see sd_listen_fds(3); nil: it has passed nothing on. Nothing that this
// process starts inherits what was passed, or the variables that say so.
func inherited(path string) (*net.UnixListener, error) {
	files := activation.Files(true)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	switch len(files) {
	case 0:
		return nil, nil
	case 1:
		return listenerOf(files[0], path)
	}
	return nil, fmt.Errorf("systemd has passed on %d descriptors: want one, which is the socket at %s: see ListenStream= in its socket unit", len(files), path)
}

// listenerOf returns the listener that a descriptor is, if it is a stream socket that listens at the path.
func listenerOf(f *os.File, path string) (*net.UnixListener, error) {
	if err := isListener(f); err != nil {
		return nil, fmt.Errorf("use what systemd has passed on as the broker's socket: %w: want ListenStream=%s in its socket unit", err, path)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket that systemd has passed on: %w", err)
	}
	if at := l.Addr().String(); at != path {
		l.Close()
		return nil, fmt.Errorf("systemd listens at %s, and the broker is to serve at %s: make ListenStream= of its socket unit and the broker's flags agree",
			wire.Printable(at, 256), path)
	}
	return l.(*net.UnixListener), nil // isListener has seen that it is one
}

// isListener checks that a descriptor is a Unix stream socket that listens, as sd_is_socket_unix(3) does.
func isListener(f *os.File) error {
	fd := int(f.Fd())
	for _, want := range []struct {
		option, value int
		text          string
	}{
		{unix.SO_DOMAIN, unix.AF_UNIX, "it is no Unix socket"},
		{unix.SO_TYPE, unix.SOCK_STREAM, "it is no stream socket"},
		{unix.SO_ACCEPTCONN, 1, "it does not listen"},
	} {
		value, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.option)
		if err != nil {
			return fmt.Errorf("it is no socket: %w", err)
		}
		if value != want.value {
			return errors.New(want.text)
		}
	}
	return nil
}
