package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/nearest"
)

// A Listing is how rows of T are shown as a table.
type Listing[T any] struct {
	Thing   string // what a row is: "session"
	Columns []Column[T]
	Totals  func([]T) string // what is summed up beside the number of rows, of all of them; nil: nothing
}

// A Column is one column of a Listing.
type Column[T any] struct {
	Name  string           // as its header has it
	Cell  func(T) string   // its text; an empty one shows as "-"
	Order func(a, b T) int // how its cells compare; nil: as their texts
	Tone  func(row T) Tone // how it stands out on a terminal; nil: not at all
}

// A View is what is wanted of a Listing. The zero View is all of it, as it came.
type View struct {
	NoLegend bool     // neither header nor totals
	Columns  []string // which, in this order; none: all
	Sort     string   // by which column; empty: as it came
	Reverse  bool
	Limit    int  // how many rows at most; 0: all. The totals are told then
	Color    bool // for a terminal
}

// Lift returns the Listing of rows that have one of l's rows each.
func Lift[T, U any](l Listing[T], row func(U) T) Listing[U] {
	lifted := Listing[U]{Thing: l.Thing}
	for _, c := range l.Columns {
		column := Column[U]{Name: c.Name, Cell: func(u U) string { return c.Cell(row(u)) }}
		if c.Order != nil {
			column.Order = func(a, b U) int { return c.Order(row(a), row(b)) }
		}
		if c.Tone != nil {
			column.Tone = func(u U) Tone { return c.Tone(row(u)) }
		}
		lifted.Columns = append(lifted.Columns, column)
	}
	if l.Totals != nil {
		lifted.Totals = func(all []U) string {
			rows := make([]T, len(all))
			for i, u := range all {
				rows[i] = row(u)
			}
			return l.Totals(rows)
		}
	}
	return lifted
}

// Names returns the columns' names.
func (l Listing[T]) Names() (names []string) {
	for _, c := range l.Columns {
		names = append(names, c.Name)
	}
	return names
}

// CheckView checks that a view names columns that there are. Case does not matter, and for blanks there may be _ or -.
func CheckView(v View, columns []string) error {
	for _, name := range append(slices.Clone(v.Columns), v.Sort) {
		if name == "" || slices.ContainsFunc(columns, func(c string) bool { return folded(c) == folded(name) }) {
			continue
		}
		var words []string
		for _, c := range columns {
			words = append(words, folded(c))
		}
		near := nearest.Of(folded(name), words)
		if len(near) == 0 {
			near = words
		}
		return fmt.Errorf("no column %q: is it %s?", name, strings.Join(near, ", "))
	}
	if v.Limit < 0 {
		return fmt.Errorf("--limit %d: want 0, for all, or more", v.Limit)
	}
	return nil
}

// folded is a column's name as it is typed.
func folded(name string) string {
	return strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(name))
}

// Fold returns columns' names as they are typed.
func Fold(columns []string) (words []string) {
	for _, c := range columns {
		words = append(words, folded(c))
	}
	return words
}

func (l Listing[T]) column(name string) Column[T] {
	i := slices.IndexFunc(l.Columns, func(c Column[T]) bool { return folded(c.Name) == folded(name) })
	return l.Columns[i] // CheckView knows it
}

// Arrange returns the rows that a view wants, in its order. The view was checked. Rows that compare alike stay in their order.
func (l Listing[T]) Arrange(v View, rows []T) []T {
	rows = slices.Clone(rows)
	if v.Sort != "" {
		c := l.column(v.Sort)
		order := c.Order
		if order == nil {
			order = func(a, b T) int { return cmp.Compare(c.Cell(a), c.Cell(b)) }
		}
		slices.SortStableFunc(rows, order)
	}
	if v.Reverse {
		slices.Reverse(rows)
	}
	if v.Limit > 0 && len(rows) > v.Limit {
		rows = rows[:v.Limit]
	}
	return rows
}

// Print writes the table of rows as a checked view wants it.
func (l Listing[T]) Print(w io.Writer, v View, rows []T) error {
	columns := l.Columns
	if len(v.Columns) > 0 {
		columns = nil
		for _, name := range v.Columns {
			columns = append(columns, l.column(name))
		}
	}
	tone := func(t Tone) Tone {
		if v.Color {
			return t
		}
		return Plain
	}
	t := &Table{}
	if !v.NoLegend {
		var header []cell
		for _, c := range columns {
			header = append(header, shown(c.Name, tone(Strong)))
		}
		t.rows = append(t.rows, header)
	}
	for _, row := range l.Arrange(v, rows) {
		var cells []cell
		for _, c := range columns {
			text := shown(c.Cell(row), Plain)
			if c.Tone != nil {
				text.tone = tone(c.Tone(row))
			}
			cells = append(cells, text)
		}
		t.rows = append(t.rows, cells)
	}
	if err := t.Print(w); err != nil || v.NoLegend || v.Limit == 0 {
		return err
	}
	_, err := fmt.Fprintln(w, l.totals(v, rows))
	return err
}

// totals says how many rows there are, of which how many are shown, and what they sum up to.
func (l Listing[T]) totals(v View, rows []T) string {
	text := fmt.Sprintf("%d of %d %ss", min(len(rows), v.Limit), len(rows), l.Thing)
	if l.Totals != nil {
		text += ": " + l.Totals(rows)
	}
	return text
}
