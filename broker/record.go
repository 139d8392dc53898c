package broker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

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

// last returns the record of the service's last instance. It is a help: without it numbers begin again.
func (s *service) last() record {
	b, err := os.ReadFile(s.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return record{}
	}
	r := record{}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err == nil && (r.Version != 1 || r.Number < 0) {
		err = wire.Errorf(wire.Unsupported, "version %d, number %d", r.Version, r.Number)
	}
	if err != nil {
		s.b.log.Warn("cannot read the record of a service: its instances are numbered from 1 again", "service", s.Name, "err", err)
		return record{}
	}
	return r
}

// remember writes the record of an instance: its number before it is started, so that none is used twice, and its process after that.
// The folder is private, see Lock.
func (s *service) remember(number int64, of process.ID) {
	b, err := json.Marshal(record{Version: 1, Service: s.Name, Number: number, Process: of})
	path := s.recordPath()
	if err == nil {
		err = os.WriteFile(path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		s.b.log.Error("cannot write the record of a service", "service", s.Name, "err", err)
	}
}
