package broker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	// logLines is how many lines of a log are sent if the request says none.
	logLines = 100
	// logTail bounds how much of a log's end is looked through for them, in bytes.
	logTail = 4 << 20
	// logPart is how much of a log travels at once, in bytes.
	logPart = 32 << 10
	// logPoll is how often a log that is followed is looked at.
	logPoll = 200 * time.Millisecond
)

// outputTold says where output goes that a service file sends elsewhere than to the instance's log.
func outputTold(to string) string {
	if to == servicefile.Inherit {
		return "the broker's own log"
	}
	return to
}

// logs sends the end of a service's log, and what comes if the request wants that.
func (b *Broker) logs(ctx context.Context, r LogsRequest, out *session.Streaming[struct{}, LogChunk]) error {
	s, _, err := b.commanded(ctx, r.Name, "read the log of")
	if err != nil {
		return err
	}
	def := s.definition()
	if def.Stdout != "" && def.Stderr != "" {
		return wire.Errorf(wire.NotFound, "%s has no log of its own: its stdout goes to %s, and its stderr to %s", r.Name, outputTold(def.Stdout), outputTold(def.Stderr))
	}
	l := logFile{path: LogPath(b.conf.Socket, r.Name)}
	defer l.close()
	if err := l.open(); err != nil && !(r.Follow && errors.Is(err, fs.ErrNotExist)) {
		if errors.Is(err, fs.ErrNotExist) {
			return wire.Errorf(wire.NotFound, "%s has no log yet: none of its instances has written anything", r.Name)
		}
		return err
	}
	if err := l.seek(max(0, cmp.Or(r.Lines, logLines))); err != nil {
		return err
	}
	for {
		if err := l.send(out); err != nil {
			return err
		}
		if !r.Follow {
			return nil
		}
		select {
		case <-time.After(logPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := l.rotated(out); err != nil {
			return err
		}
	}
}

// A logFile is a log that is read while a keeper writes to it, and puts another in its place.
type logFile struct {
	path string
	file *os.File // nil: it is not there yet
}

// open opens the log. It follows no link, and reads nothing where others could have put it.
func (l *logFile) open() error {
	if err := socket.CheckPrivate(filepath.Dir(l.path)); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err == nil {
		l.close()
		l.file = f
	}
	return err
}

func (l *logFile) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// seek goes to where the last lines begin.
func (l *logFile) seek(lines int) error {
	if l.file == nil {
		return nil
	}
	size, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if lines == 0 {
		return nil
	}
	start := max(0, size-logTail)
	tail, err := io.ReadAll(io.NewSectionReader(l.file, start, size-start))
	if err != nil {
		return err
	}
	at := len(bytes.TrimSuffix(tail, []byte("\n")))
	for range lines {
		if at = bytes.LastIndexByte(tail[:at], '\n'); at < 0 {
			break
		}
	}
	_, err = l.file.Seek(start+int64(at+1), io.SeekStart)
	return err
}

// send sends what has been written since it was last called.
func (l *logFile) send(out *session.Streaming[struct{}, LogChunk]) error {
	if l.file == nil {
		return nil
	}
	b := make([]byte, logPart)
	for {
		n, err := l.file.Read(b)
		if n > 0 {
			if err := out.Send(LogChunk{Data: b[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || n == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// rotated goes on with the log that has taken the place of the one that is read, when that is read to its end.
func (l *logFile) rotated(out *session.Streaming[struct{}, LogChunk]) error {
	now, err := os.Lstat(l.path)
	if err != nil {
		return nil // it comes again
	}
	if l.file != nil {
		if was, err := l.file.Stat(); err == nil && os.SameFile(was, now) {
			return nil
		}
		if err := l.send(out); err != nil {
			return err
		}
	}
	if err := l.open(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
