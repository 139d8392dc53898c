package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
)

// recordVersion is the version of the record's format. A field that is added, which older programs leave out and do not look at, is no reason for another one.
const recordVersion = 1

// maxLine is the longest line of a record in bytes, with its end. A hold with all its witnesses and aliases has some 7 KiB.
const maxLine = 16 << 10

// The kinds of an entry.
const (
	entryHead    = "head"    // the first line: Version, Boot, Generation
	entryHold    = "hold"    // Lease is held from now on: all fields of a lease
	entryWitness = "witness" // Lease has the witness Process too, or Space
	entryLeave   = "leave"   // the session of Lease is over, and its witnesses keep it
	entryFree    = "free"    // Lease is over
	entryDoubt   = "doubt"   // an earlier record could not be read: what is not in this one may be held too, as long as a suspect lives
	entrySuspect = "suspect" // Process is one
)

// An entry is one line of the record, which append writes field by field: the CRC-32 (IEEE) of a JSON object in 8 hexadecimal digits, a space, that object, and the end of the line.
type entry struct {
	Kind string `json:"kind"`

	Version    int    `json:"version,omitempty"`
	Boot       string `json:"boot,omitempty"`       // what /proc/sys/kernel/random/boot_id says
	Generation int64  `json:"generation,omitempty"` // when this file was begun, in Unix nanoseconds

	Lease       string         `json:"lease,omitempty"`
	Network     string         `json:"network,omitempty"`
	Hostname    string         `json:"hostname,omitempty"`
	Aliases     []string       `json:"aliases,omitempty"`
	Addresses   []netip.Prefix `json:"addresses,omitempty"`
	MAC         string         `json:"mac,omitempty"`
	MACGiven    bool           `json:"mac_given,omitempty"`
	AllocatedAt int64          `json:"allocated_at,omitempty"` // in Unix nanoseconds
	Session     string         `json:"session,omitempty"`
	PID         int            `json:"pid,omitempty"`        // the holder, for display
	UID         uint32         `json:"uid,omitempty"`        // the holder's
	Holder      process.ID     `json:"holder,omitzero"`      // while its life keeps the lease
	Left        bool           `json:"left,omitempty"`       // as after a leave
	Witnesses   []process.ID   `json:"witnesses,omitempty"`  // those that live
	Proof       string         `json:"proof,omitempty"`      // the SHA-256 of the secret that its holder was told, in hexadecimal
	Token       string         `json:"token,omitempty"`      // by which its holder may withdraw it
	Cut         bool           `json:"cut,omitempty"`        // it has lost an address or a name, because the networks have changed
	Spaces      []space        `json:"namespaces,omitempty"` // further witnesses
	Process     process.ID     `json:"process,omitzero"`
	Space       space          `json:"namespace,omitzero"`
}

// decode reads a line, without its end.
func decode(line []byte) (entry, error) {
	sum, text, found := bytes.Cut(line, []byte(" "))
	if !found || len(sum) != 8 {
		return entry{}, fmt.Errorf("malformed line: want a checksum and an object")
	}
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || uint32(want) != crc32.ChecksumIEEE(text) {
		return entry{}, fmt.Errorf("malformed line: the checksum is wrong")
	}
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, fmt.Errorf("malformed line: %w", err)
	}
	if err := e.check(); err != nil {
		return entry{}, fmt.Errorf("malformed %s line: %w", e.Kind, err)
	}
	return e, nil
}

// check returns what is missing in an entry of its kind.
func (e *entry) check() error {
	switch e.Kind {
	case entryHead:
		if e.Version < recordVersion || e.Boot == "" {
			return fmt.Errorf("version %d, want %d", e.Version, recordVersion)
		}
		return nil
	case entryDoubt:
		return nil
	case entrySuspect:
		return checkProcess(e.Process)
	case entryHold:
		return e.checkHold()
	case entryWitness:
		if e.Space == (space{}) {
			if err := checkProcess(e.Process); err != nil {
				return err
			}
		}
		return network.CheckLeaseID(e.Lease)
	case entryLeave, entryFree:
		return network.CheckLeaseID(e.Lease)
	}
	return fmt.Errorf("the kind is not known")
}

func (e *entry) checkHold() error {
	if err := network.CheckLeaseID(e.Lease); err != nil {
		return err
	}
	if err := network.CheckNetwork(e.Network); err != nil {
		return err
	}
	if host, err := network.CanonicalHostname(e.Hostname); err != nil || host != e.Hostname {
		return fmt.Errorf("hostname of %d bytes", len(e.Hostname))
	}
	if aliases, err := network.CanonicalAliases(e.Aliases); err != nil || !slices.Equal(aliases, e.Aliases) {
		return fmt.Errorf("%d aliases, not in their canonical form", len(e.Aliases))
	}
	if _, err := net.ParseMAC(e.MAC); err != nil {
		return err
	}
	if len(e.Addresses) == 0 || len(e.Addresses) > network.MaxAddresses || len(e.Session) > 64 || len(e.Token) > 64 || e.PID < 0 {
		return fmt.Errorf("%d addresses, session of %d bytes, token of %d bytes, process %d", len(e.Addresses), len(e.Session), len(e.Token), e.PID)
	}
	for _, a := range e.Addresses {
		if !a.IsValid() {
			return fmt.Errorf("an empty address")
		}
	}
	if !e.Holder.IsZero() || !e.Left && len(e.Witnesses) == 0 { // else nothing is said of whom to ask for
		if err := checkProcess(e.Holder); err != nil {
			return err
		}
	}
	for _, w := range e.Witnesses {
		if err := checkProcess(w); err != nil {
			return err
		}
	}
	return nil
}

func checkProcess(id process.ID) error {
	if id.PID <= 0 || id.Boot == "" {
		return fmt.Errorf("process %d", id.PID)
	}
	return nil
}
