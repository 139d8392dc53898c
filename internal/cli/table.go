package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fairlead-dev/fairlead/wire"
)

// maxCell bounds what is shown of one cell, in bytes.
const maxCell = 1024

// A Table is aligned columns under a header.
type Table struct {
	rows [][]cell
}

// A cell is a text that may be shown, and how.
type cell struct {
	text string
	tone Tone
}

// NewTable returns a table that has only its header. Without columns it has none.
func NewTable(columns ...string) *Table {
	t := &Table{}
	if len(columns) > 0 {
		t.Row(columns...)
	}
	return t
}

// Row adds a row. What is in it may come from anybody, so it is escaped. An empty cell shows as "-".
func (t *Table) Row(cells ...string) {
	row := make([]cell, len(cells))
	for i, text := range cells {
		row[i] = shown(text, Plain)
	}
	t.rows = append(t.rows, row)
}

// shown returns a cell with what may be shown of a text.
func shown(text string, tone Tone) cell {
	if text == "" {
		return cell{"-", tone}
	}
	return cell{wire.Printable(text, maxCell), tone}
}

// Print writes the table without blanks at the ends of lines.
func (t *Table) Print(w io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var out strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			out.WriteString(c.tone.Paint(c.text))
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// A Tone is how a text stands out on a terminal.
type Tone string

// The tones: parameters of ECMA-48's SGR.
const (
	Plain  Tone = ""
	Strong Tone = "1"  // headers
	Good   Tone = "32" // as it should be
	Busy   Tone = "33" // on its way
	Bad    Tone = "31" // somebody should look
)

// Paint returns a text as it stands out on a terminal.
func (t Tone) Paint(text string) string {
	if t == Plain {
		return text
	}
	return "\x1b[" + string(t) + "m" + text + "\x1b[0m"
}

// Age says how long ago a time was, for a cell; nothing for 0.
func Age(at wire.Time) string {
	if at == 0 {
		return ""
	}
	d := time.Since(at.Time())
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	}
	return fmt.Sprintf("%.0fd", d.Hours()/24)
}

// Who names a process, for a cell.
func Who(p wire.Process) string {
	if p.Program == "" {
		return fmt.Sprint(p.PID)
	}
	return fmt.Sprintf("%s[%d]", p.Program, p.PID)
}
