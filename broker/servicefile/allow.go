package servicefile

import (
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
	"github.com/fairlead-dev/fairlead/wire"
)

// Allow says who may do what with a service, beside root and the broker's own user, who may do all. An empty list allows nobody else.
type Allow struct {
	Open     Rules // sessions of its endpoints
	Register Rules // serving its endpoints, by a process that the broker did not start
	Admin    Rules // its start and stop, and all its sessions
}

// A Who is somebody whom rules are asked about, as the kernel says it of a socket's peer.
type Who struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// A Rule is one entry of a list in [allow]. The zero Rule fits nobody.
type Rule struct {
	text string
	fits ruleKind
	id   uint32
}

type ruleKind uint8

const (
	fitsNobody ruleKind = iota
	fitsUser
	fitsGroup
	fitsAny
)

// ParseRule reads "uid:N", "gid:N", "user:NAME", "group:NAME" or "any". A name is resolved once, here. It fails with wire.NotFound for a name
// that the system does not know, with wire.Malformed for anything else, and with the system's error where it cannot tell.
func ParseRule(text string) (Rule, error) {
	if text == "any" {
		return Rule{text: text, fits: fitsAny}, nil
	}
	kind, value, _ := strings.Cut(text, ":")
	r := Rule{text: text}
	var err error
	switch kind {
	case "uid":
		r.fits = fitsUser
		r.id, err = parseID(value)
	case "gid":
		r.fits = fitsGroup
		r.id, err = parseID(value)
	case "user":
		r.fits = fitsUser
		r.id, err = named(value, "uid", userID)
	case "group":
		r.fits = fitsGroup
		r.id, err = named(value, "gid", groupID)
	default:
		err = wire.Errorf(wire.Malformed, `%s: want "uid:N", "gid:N", "user:NAME", "group:NAME" or "any"`, strictfile.Quote(text))
	}
	if err != nil {
		return Rule{}, err
	}
	return r, nil
}

// named resolves a name that is no number.
func named(name, number string, resolve func(string) (uint32, error)) (uint32, error) {
	if numeric(name) {
		return 0, wire.Errorf(wire.Malformed, "%s is a number and no name: write %s", strictfile.Quote(name), strictfile.Quote(number+":"+name))
	}
	return resolve(name)
}

// String returns the rule as it was written.
func (r Rule) String() string { return r.text }

// Permit reports whether the rule fits w. Groups are the effective and the supplementary ones.
func (r Rule) Permit(w Who) bool {
	switch r.fits {
	case fitsUser:
		return w.UID == r.id
	case fitsGroup:
		return w.GID == r.id || slices.Contains(w.Groups, r.id)
	case fitsAny:
		return true
	}
	return false
}

// Rules are a list in [allow].
type Rules []Rule

// Permit reports whether any of the rules fits w.
func (r Rules) Permit(w Who) bool {
	return slices.ContainsFunc(r, func(rule Rule) bool { return rule.Permit(w) })
}

// String returns the rules as they were written, as in "uid:5, group:wheel".
func (r Rules) String() string {
	texts := make([]string, len(r))
	for i, rule := range r {
		texts[i] = rule.String()
	}
	return strings.Join(texts, ", ")
}
