package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// maxRecord bounds what is read of a record, in bytes.
const maxRecord = 256 << 10

// A record is what is written down of a service, for the next broker: its last instance and how its starts have gone.
type record struct {
	Version int                 `json:"version"` // 1
	Number  int64               `json:"number"`  // of the last instance
	Keeper  keeper.Record       `json:"keeper,omitzero"`
	Service servicefile.Service `json:"started_by,omitzero"`
	Served  bool                `json:"served,omitempty"` // the last instance has registered
	Health  health              `json:"health"`
	Cause   Cause               `json:"cause,omitzero"`
	Last    Exit                `json:"last,omitzero"`
	Stopped *Cause              `json:"stopped,omitempty"`
}

// A recordFile is where a record is kept. Who writes it waits for who does.
type recordFile struct {
	path string
	mu   sync.Mutex // of writing
}

// read returns the record. It is a help: without it, or with one that makes no sense, numbers begin again; then useless says why. It fails where the
// record cannot be read, as through a link, which is not followed.
func (f *recordFile) read() (r record, useless, err error) {
	b, err := readOwn(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil, nil
	}
	if err != nil {
		return record{}, nil, fmt.Errorf("read the record of a service: %w", err)
	}
	useless = json.Unmarshal(b, &r)
	if useless == nil && (r.Version != 1 || r.Number < 0) {
		useless = wire.Errorf(wire.Unsupported, "version %d, number %d", r.Version, r.Number)
	}
	if useless != nil {
		r = record{}
	}
	return r, useless, nil
}

// write writes what latest returns.
func (f *recordFile) write(latest func() record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := json.Marshal(latest())
	if err == nil {
		err = makePrivate(filepath.Dir(f.path))
	}
	if err == nil {
		err = writeOwn(f.path+".new", b)
	}
	if err == nil {
		err = os.Rename(f.path+".new", f.path)
	}
	if err != nil {
		return fmt.Errorf("write the record of a service: %w", err)
	}
	return nil
}

// recall reads the service's record, once.
func (s *service) recall() error {
	s.mu.Lock()
	recalled := s.recalled
	s.mu.Unlock()
	if recalled {
		return nil
	}
	err := socket.CheckPrivate(filepath.Dir(s.file.path)) // what others could have written says nothing
	var r record
	var useless error
	if err == nil {
		r, useless, err = s.file.read()
	}
	if err != nil {
		return err
	}
	if useless != nil {
		s.b.log.Warn("the record of a service is of no use: its instances are numbered from 1 again", "service", s.name, "err", useless)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recalled = true
	s.number, s.kept, s.keptBy, s.served = r.Number, r.Keeper, r.Service, r.Served
	s.health, s.cause, s.last = r.Health, r.Cause, r.Last
	if s.stopped == nil {
		s.stopped = r.Stopped
	}
	s.health.recalled(time.Now())
	return nil
}

// lastAlive names the process of the last instance, if it is known and lives.
func (s *service) lastAlive() string {
	s.mu.Lock()
	last := s.kept.Program
	s.mu.Unlock()
	if !last.Alive() {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", last.PID)
}

// nextNumber takes the number of the next instance. It is written down before the instance is started, so that none is used twice.
func (s *service) nextNumber() (int64, error) {
	if err := s.recall(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.number++
	number := s.number
	s.kept, s.keptBy, s.served = keeper.Record{}, servicefile.Service{}, false
	s.mu.Unlock()
	return number, s.file.write(s.record)
}

// keep writes down by which keeper the last instance is kept, and by what it was started.
func (s *service) keep(k keeper.Record, by servicefile.Service) error {
	s.mu.Lock()
	s.kept, s.keptBy = k, by
	s.mu.Unlock()
	return s.file.write(s.record)
}

// remember writes down what the service has come to. Without the record the lock still tells that an instance lives. One that was not read yet is left alone.
func (s *service) remember() {
	s.mu.Lock()
	recalled := s.recalled
	s.mu.Unlock()
	if !recalled {
		return
	}
	if err := s.file.write(s.record); err != nil {
		s.b.log.Error("the record of a service is out of date", "service", s.name, "err", err)
	}
}

// record returns what is to be written down.
func (s *service) record() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return record{Version: 1, Number: s.number, Keeper: s.kept, Service: s.keptBy, Served: s.served, Health: s.health, Cause: s.cause, Last: s.last, Stopped: s.stopped}
}

// readOwn reads a file that is no link.
func readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

// writeOwn writes a file that is no link.
func writeOwn(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
