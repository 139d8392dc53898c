package server

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strconv"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// append appends e to b as a line. Its object is what encoding/json makes of e, which takes several times as long: an allocate waits for it.
func (e *entry) append(b []byte) []byte {
	at := len(b)
	b = append(b, "00000000 "...)
	o := object{b, '{'}
	o.text("kind", e.Kind)
	o.number("version", int64(e.Version))
	o.text("boot", e.Boot)
	o.number("generation", e.Generation)
	o.text("lease", e.Lease)
	o.text("network", e.Network)
	o.text("hostname", e.Hostname)
	if len(e.Aliases) > 0 {
		o.value("aliases", e.Aliases)
	}
	o.prefixes("addresses", e.Addresses)
	o.text("mac", e.MAC)
	o.truth("mac_given", e.MACGiven)
	o.number("allocated_at", e.AllocatedAt)
	o.text("session", e.Session)
	o.number("pid", int64(e.PID))
	o.number("uid", int64(e.UID))
	o.process("holder", e.Holder)
	o.truth("left", e.Left)
	if len(e.Witnesses) > 0 {
		o.value("witnesses", e.Witnesses)
	}
	o.text("proof", e.Proof)
	o.text("token", e.Token)
	o.truth("cut", e.Cut)
	if len(e.Spaces) > 0 {
		o.value("namespaces", e.Spaces)
	}
	o.process("process", e.Process)
	if e.Space != (space{}) {
		o.value("namespace", e.Space)
	}
	b = append(o.b, '}')
	sum := crc32.ChecksumIEEE(b[at+9:])
	for i := range 8 {
		b[at+i] = "0123456789abcdef"[sum>>(28-4*i)&0xf]
	}
	return append(b, '\n')
}

// An object is a JSON object that is being written, up to its end. What is zero is left out.
type object struct {
	b    []byte
	next byte // what comes before the next key
}

func (o *object) key(name string) {
	o.b = append(o.b, o.next, '"')
	o.b = append(append(o.b, name...), '"', ':')
	o.next = ','
}

func (o *object) text(name, v string) {
	if v != "" {
		o.key(name)
		o.string(v)
	}
}

// string appends a string. Those with bytes that may need an escape are left to encoding/json.
func (o *object) string(v string) {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			o.marshal(v)
			return
		}
	}
	o.b = append(append(append(o.b, '"'), v...), '"')
}

func (o *object) number(name string, v int64) {
	if v != 0 {
		o.key(name)
		o.b = strconv.AppendInt(o.b, v, 10)
	}
}

func (o *object) truth(name string, v bool) {
	if v {
		o.key(name)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) prefixes(name string, list []netip.Prefix) {
	if len(list) == 0 {
		return
	}
	o.key(name)
	between := byte('[')
	for _, p := range list {
		o.b = append(p.AppendTo(append(o.b, between, '"')), '"')
		between = ','
	}
	o.b = append(o.b, ']')
}

func (o *object) process(name string, id process.ID) {
	if id.IsZero() {
		return
	}
	o.key(name)
	o.b = strconv.AppendInt(append(o.b, `{"pid":`...), int64(id.PID), 10)
	o.b = strconv.AppendUint(append(o.b, `,"start":`...), id.Start, 10)
	o.b = append(o.b, `,"boot":`...)
	o.string(id.Boot)
	o.b = append(o.b, '}')
}

// value appends what an entry seldom has.
func (o *object) value(name string, v any) {
	o.key(name)
	o.marshal(v)
}

func (o *object) marshal(v any) {
	text, err := json.Marshal(v)
	if err != nil { // no value of these types fails
		panic(fmt.Sprintf("server: encode an entry: %v", err))
	}
	o.b = append(o.b, text...)
}
