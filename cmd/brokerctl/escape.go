package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// An escaper writes text for a terminal: but for line feeds and tabs, all that is not printable is escaped, in Go's syntax. What is written to it may be cut
// anywhere.
type escaper struct {
	w    io.Writer
	rest []byte // the beginning of a character that is not there as a whole yet
}

// Write writes what is whole.
func (e *escaper) Write(p []byte) (int, error) {
	all := append(e.rest, p...)
	whole := len(all)
	for n := 1; n < utf8.UTFMax && n <= len(all); n++ {
		if at := len(all) - n; utf8.RuneStart(all[at]) {
			if !utf8.FullRune(all[at:]) {
				whole = at
			}
			break
		}
	}
	e.rest = bytes.Clone(all[whole:])
	if err := e.write(all[:whole]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// end writes what has remained.
func (e *escaper) end() error { return e.write(e.rest) }

func (e *escaper) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	out := make([]byte, 0, len(p))
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, p[0])
		case r == '\n', r == '\t', strconv.IsPrint(r):
			out = append(out, p[:size]...)
		default:
			quoted := strconv.QuoteRune(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		}
		p = p[size:]
	}
	_, err := e.w.Write(out)
	return err
}
