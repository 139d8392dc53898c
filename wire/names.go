package wire

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// CheckName checks the name of an endpoint or a service: 1 to MaxEndpoint letters, digits, '-', '_' and '.', in parts that are not empty.
func CheckName(name string) error {
	if name == "" || len(name) > MaxEndpoint {
		return Errorf(Malformed, "endpoint name of %d bytes, want 1 to %d", len(name), MaxEndpoint)
	}
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || strings.ContainsFunc(part, notInName) {
			return Errorf(Malformed, "endpoint name %q: want letters, digits, '-' and '_' in parts joined by single dots, as in com.example.echo", name)
		}
	}
	return nil
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// CheckID checks a session's id: 128 bits as 32 lower-case hexadecimal digits.
func CheckID(id string) error {
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return Errorf(Malformed, "session id %q: want 32 hexadecimal digits", Printable(id, 64))
	}
	return nil
}

// CheckFacts checks that facts are at most MaxFacts pairs of at most MaxFact bytes on either side.
func CheckFacts(facts map[string]string) error {
	if len(facts) > MaxFacts {
		return Errorf(OverQuota, "%d facts, limit %d", len(facts), MaxFacts)
	}
	for k, v := range facts {
		if k == "" || len(k) > MaxFact || len(v) > MaxFact {
			return Errorf(OverQuota, "fact %q: name of %d and value of %d bytes, limit %d", Printable(k, 32), len(k), len(v), MaxFact)
		}
	}
	return nil
}

// Cut returns the beginning of s that is valid UTF-8 and at most limit bytes long.
func Cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// Printable returns at most limit bytes of s, with everything escaped that could steer a terminal or break a line, in Go's syntax. What comes
// from a peer passes through it before a person sees it.
func Printable(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}
