package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The checks, by what they find.
const (
	duplicateAddress  = "an address has two users"
	duplicateInstance = "a service has two instances"
	twice             = "something was executed twice"
	notExecuted       = "what was answered was not executed"
	notSent           = "what was not sent was executed"
	disorder          = "one-way messages are out of order"
	wrongReply        = "a reply is another call's"
	noReply           = "a call does not come back"
	openDescriptor    = "a descriptor that was passed stays open"
	unexplained       = "a failure has no explanation"
	crash             = "a program has ended by itself"
	noRecovery        = "there is no recovery"
	lostLease         = "a lease of the living was lost"
	sessionTable      = "the table of sessions is wrong"
	leaseTable        = "the table of leases is wrong"
	serviceTable      = "the table of services is wrong"
	leakedDescriptor  = "descriptors are leaked"
	leakedGoroutine   = "goroutines are leaked"
	leakedProcess     = "a process is left behind"
	leakedFile        = "a file is left behind"
	dataRace          = "a program has a data race"
	machineFault      = "the machine itself cannot go on"
)

// A Finding is a promise that did not hold.
type Finding struct {
	Check string `json:"check"`
	Text  string `json:"text"`
}

func (f Finding) String() string { return f.Check + ": " + f.Text }

func finding(check, format string, args ...any) Finding {
	return Finding{check, fmt.Sprintf(format, args...)}
}

// A place is the folder of a machine, as its actors know it.
type place string

func (p place) socket() string { return p.at("b.sock") }
func (p place) at(name ...string) string {
	return filepath.Join(append([]string{string(p)}, name...)...)
}

// The folders of a place.
var folders = []string{"claims", "alone", "done", "told", "config/services.d"}

// find writes a finding down, where it outlives this process.
func (p place) find(check, format string, args ...any) {
	line, _ := json.Marshal(finding(check, format, args...)) // two strings
	f, err := os.OpenFile(p.at("findings"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer f.Close()
	f.Write(append(line, '\n'))
}

// found returns what actors have written down so far.
func (p place) found() (all []Finding, err error) {
	text, err := os.ReadFile(p.at("findings"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	for line := range strings.Lines(string(text)) {
		var f Finding
		if json.Unmarshal([]byte(line), &f) == nil { // who is killed may leave half a line
			all = append(all, f)
		}
	}
	return all, err
}
