package faults

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/fairlead-dev/fairlead/wire"
)

// An act is what an actor does, and what its clients are told.
type act uint8

const (
	openAct act = iota
	callAct
	noteAct
	passAct
	sumAct
	rawAct
	allocateAct
	releaseAct
	reclaimAct
	evictAct
)

var actNames = []string{"open a session", "call", "one-way message, flushed", "call with descriptors", "streaming call", "raw stream", "allocate", "release", "reclaim", "release by name"}

// executes reports whether a worker writes down that it has executed the act.
func (a act) executes() bool { return a >= callAct && a <= rawAct }

// codes are those of outcomes, by their numbers. The first is none.
var codes = []wire.Code{"", wire.UnknownEndpoint, wire.NotPermitted, wire.StartFailed, wire.StartTimeout, wire.Suspended, wire.OverQuota, wire.Refused, wire.Terminating, wire.Interrupted,
	wire.Invalid, wire.UnknownMethod, wire.Malformed, wire.DeadlineExceeded, wire.Canceled, wire.NotFound, wire.Conflict, wire.Exhausted, wire.Unavailable, wire.Unsupported, wire.Internal}

// An outcome is what became of an act, as who did it was told.
type outcome struct {
	ID   uint64
	Act  act
	Code wire.Code // none: it was done
	Sent bool      // it had left when it failed
}

const (
	executionSize = 8
	outcomeSize   = 16
)

// A ledger is a file to which records are added. What was added outlives this process, by whatever it ends: each is one write.
type ledger struct{ f *os.File }

func openLedger(folder string) (*ledger, error) {
	f, err := os.OpenFile(filepath.Join(folder, strconv.Itoa(os.Getpid())), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &ledger{f}, err
}

// executed adds an execution.
func (l *ledger) executed(id uint64) {
	l.f.Write(binary.BigEndian.AppendUint64(nil, id))
}

// became adds an outcome.
func (l *ledger) became(o outcome) {
	b := binary.BigEndian.AppendUint64(nil, o.ID)
	sent := byte(0)
	if o.Sent {
		sent = 1
	}
	l.f.Write(append(b, byte(o.Act), byte(max(0, slices.Index(codes, o.Code))), sent, 0, 0, 0, 0, 0))
}

// take reads all ledgers of a folder, and empties them. One whose writer is gone is removed. It is for a time in which nobody writes.
func take(folder string, size int, each func(record []byte)) error {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		text, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr)
		for record := range slices.Chunk(text, size) {
			if len(record) == size {
				each(record)
			}
		}
		if _, gone := os.Stat("/proc/" + e.Name()); gone != nil {
			err = errors.Join(err, os.Remove(path))
		} else {
			err = errors.Join(err, os.Truncate(path, 0))
		}
	}
	return err
}

// takeLedgers takes what was executed, how often, and what became of what.
func (p place) takeLedgers() (executed map[uint64]int, outcomes []outcome, err error) {
	executed = map[uint64]int{}
	errDone := take(p.at("done"), executionSize, func(b []byte) { executed[binary.BigEndian.Uint64(b)]++ })
	errTold := take(p.at("told"), outcomeSize, func(b []byte) {
		outcomes = append(outcomes, outcome{binary.BigEndian.Uint64(b), act(b[8]), codes[b[9]], b[10] != 0})
	})
	return executed, outcomes, errors.Join(errDone, errTold)
}
