// Package strictfile reads TOML files that people write: only what can be trusted and understood, and of everything else it says where it is, and which rule
// it breaks.
package strictfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/fairlead-dev/fairlead/wire"
)

// A Problem is a rule that a file breaks. As an error it is wire.Malformed.
type Problem struct {
	File string // the path, or that of the folder
	Line int    // from 1 on; 0: it has no line, as what is missing or the file itself
	Key  string // with its table's, as in allow.open; empty: the file itself
	Rule string // for people: what is wrong and what to do
}

// Error returns "FILE:LINE: key: rule", on one line, without what the problem does not have. It can be printed as it is.
func (p *Problem) Error() string {
	text := wire.Printable(p.File, 4096)
	if p.Line > 0 {
		text += ":" + strconv.Itoa(p.Line)
	}
	if p.Key != "" {
		text += ": " + p.Key
	}
	return text + ": " + p.Rule
}

// Is reports whether target is wire.Malformed.
func (p *Problem) Is(target error) bool { return target == wire.Malformed }

// Compare orders the problems of one file by their lines.
func Compare(a, b *Problem) int {
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rule, b.Rule))
}

// shown bounds what is shown of a value or a key.
const shown = 128

// Quote returns a value as it may be shown.
func Quote(s string) string { return `"` + wire.Printable(s, shown) + `"` }

// TextOf returns an error's text without its code.
func TextOf(err error) string {
	if e, ok := err.(*wire.Error); ok {
		return e.Text
	}
	return wire.Printable(fmt.Sprint(err), 256)
}

// Reason returns an error of the system without the path, which is shown before it.
func Reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return "cannot be read: " + e.Op + ": " + e.Err.Error()
	}
	return "cannot be read: " + TextOf(err)
}
