package broker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// A record is what is written down of a service's last instance, for the next broker.
type record struct {
	Version int        `json:"version"` // 1
	Service string     `json:"service"`
	Number  int64      `json:"number"`  // of the instance
	Process process.ID `json:"process"` // zero if it ended before it could be looked at
}

func (s *service) recordPath() string {
	return filepath.Join(s.b.conf.Socket+".d", s.Name+".json")
}

// lastNumber returns the number of the service's last instance. The record is a help: without it numbers begin again.
func (s *service) lastNumber() int64 {
	b, err := os.ReadFile(s.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	r := record{}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || r.Version != 1 || r.Number < 0 {
		s.b.log.Warn("cannot read the record of a service: its instances are numbered from 1 again", "service", s.Name, "err", err)
		return 0
	}
	return r.Number
}

// remember writes the record of an instance that was started.
func (s *service) remember(st *start) {
	r := record{Version: 1, Service: s.Name, Number: st.number}
	r.Process, _ = process.Identify(st.handle.PID())
	b, err := json.Marshal(r)
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
