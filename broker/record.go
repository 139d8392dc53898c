package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

// maxRecord bounds what is read of a record, in bytes.
const maxRecord = 64 << 10

// A record is what is written down of a service's last instance, for the next broker.
type record struct {
	Version int        `json:"version"` // 1
	Service string     `json:"service"`
	Number  int64      `json:"number"`  // of the instance
	Process process.ID `json:"process"` // zero until it was started
}

func (s *service) recordPath() string {
	return filepath.Join(s.b.conf.Socket+".d", s.Name+".json")
}

// last returns the record of the service's last instance. It is a help: without it, or with one that makes no sense, numbers begin again. It fails where
// the record cannot be read, as through a link, which is not followed.
func (s *service) last() (record, error) {
	b, err := readOwn(s.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read the record of a service: %w", err)
	}
	r := record{}
	err = json.Unmarshal(b, &r)
	if err == nil && (r.Version != 1 || r.Number < 0) {
		err = wire.Errorf(wire.Unsupported, "version %d, number %d", r.Version, r.Number)
	}
	if err != nil {
		s.b.log.Warn("the record of a service is of no use: its instances are numbered from 1 again", "service", s.Name, "err", err)
		return record{}, nil
	}
	return r, nil
}

// next takes the number of the next instance. It is written down before the instance is started, so that none is used twice.
func (s *service) next() (int64, error) {
	r, err := s.last()
	if err == nil {
		err = s.remember(r.Number+1, process.ID{})
	}
	return r.Number + 1, err
}

// rememberProcess writes down which process an instance is. Without that its lock still tells that it lives.
func (s *service) rememberProcess(number int64, pid int) {
	id, err := process.Identify(pid)
	if err == nil {
		err = s.remember(number, id)
	}
	if err != nil {
		s.b.log.Error("the record of an instance lacks its process", "service", s.Name, "instance", number, "err", err)
	}
}

// remember writes the record of an instance.
func (s *service) remember(number int64, of process.ID) error {
	b, err := json.Marshal(record{Version: 1, Service: s.Name, Number: number, Process: of})
	path := s.recordPath()
	if err == nil {
		err = writeOwn(path+".new", b)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write the record of a service: %w", err)
	}
	return nil
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
