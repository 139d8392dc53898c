package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// maxCell bounds what is shown of one cell, in bytes.
const maxCell = 1024

// A Table is aligned columns under a header.
type Table struct {
	buf bytes.Buffer
	tab *tabwriter.Writer
}

// NewTable returns a table that has only its header.
func NewTable(columns ...string) *Table {
	t := &Table{}
	t.tab = tabwriter.NewWriter(&t.buf, 0, 0, 2, ' ', 0)
	t.Row(columns...)
	return t
}

// Row adds a row. What is in it may come from anybody, so it is escaped. An empty cell shows as "-".
func (t *Table) Row(cells ...string) {
	shown := make([]string, len(cells))
	for i, cell := range cells {
		shown[i] = wire.Printable(cell, maxCell)
		if cell == "" {
			shown[i] = "-"
		}
	}
	fmt.Fprintln(t.tab, strings.Join(shown, "\t"))
}

// Print writes the table without blanks at the ends of lines. It is called once, after the last row.
func (t *Table) Print(w io.Writer) error {
	t.tab.Flush()
	var out strings.Builder
	for line := range strings.Lines(t.buf.String()) {
		out.WriteString(strings.TrimRight(line, " \n"))
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
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
