package main

import (
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// A meter is what was counted at one moment, by what it is of, for --watch to make rates of. The zero meter has counted nothing.
type meter struct {
	at     time.Time
	counts map[string][]int64
}

// rates returns how much something has grown since before, each second; nil if it was not there then, or has begun anew.
func (m meter) rates(before meter, of string) (list []float64) {
	now, then := m.counts[of], before.counts[of]
	span := m.at.Sub(before.at).Seconds()
	if len(then) != len(now) || span <= 0 {
		return nil
	}
	for i := range now {
		if now[i] < then[i] {
			return nil
		}
		list = append(list, float64(now[i]-then[i])/span)
	}
	return list
}

// rates are what a session carries, each second.
type rates struct {
	Calls    float64 `json:"calls"`
	Received float64 `json:"bytes_received"`
	Sent     float64 `json:"bytes_sent"`
}

// traffic adds what a session has carried to the meter.
func (m meter) traffic(session string, t wire.Traffic) {
	m.counts[session] = []int64{t.Calls, t.Received, t.Sent}
}

// trafficRates returns what a session carries; nil where that is not known.
func (m meter) trafficRates(before meter, session string) *rates {
	r := m.rates(before, session)
	if r == nil {
		return nil
	}
	return &rates{r[0], r[1], r[2]}
}

// size shows a number of bytes with some three digits.
func size(bytes float64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%.0f B", bytes)
	}
	units := []string{"KiB", "MiB", "GiB"}
	i := 0
	for bytes /= 1024; bytes >= 1024 && i < len(units)-1; i++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%.1f %s", bytes, units[i])
}
