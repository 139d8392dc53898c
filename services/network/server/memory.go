package server

import (
	"container/list"
	"net/netip"
)

// maxRemembered is how many hostnames of a network are remembered.
const maxRemembered = 4096

// A memory says which addresses hostnames last had: those 4,096 that were given back last. Its zero value is empty.
type memory struct {
	byName map[string]*list.Element
	order  list.List // of remembered, the one given back longest ago first
}

type remembered struct {
	hostname  string
	addresses []netip.Addr
}

// remember notes what a hostname had.
func (m *memory) remember(hostname string, addresses []netip.Addr) {
	if m.byName == nil {
		m.byName = map[string]*list.Element{}
	}
	if e := m.byName[hostname]; e != nil {
		m.order.Remove(e)
	}
	m.byName[hostname] = m.order.PushBack(remembered{hostname, addresses})
	if m.order.Len() > maxRemembered {
		oldest := m.order.Remove(m.order.Front()).(remembered)
		delete(m.byName, oldest.hostname)
	}
}

// recall returns what a hostname had; nil: that is not known.
func (m *memory) recall(hostname string) []netip.Addr {
	if e := m.byName[hostname]; e != nil {
		return e.Value.(remembered).addresses
	}
	return nil
}

// forget empties the memory.
func (m *memory) forget() { *m = memory{} }
