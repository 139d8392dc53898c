package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// A member is a number beside the rows of a list.
type member struct {
	name  string
	value int
}

// printList prints rows as the flags say: as a table or as JSON, with how many there are and maybe more members.
func printList[T any](c *command, name string, l cli.Listing[T], rows []T, more ...member) error {
	if !c.json {
		return l.Print(c.out, c.view, rows)
	}
	out := bufio.NewWriterSize(c.out, 64<<10)
	if err := c.writeRows(out, name, values(l.Arrange(c.view, rows)), append([]member{{"total", len(rows)}}, more...)); err != nil {
		return err
	}
	return out.Flush()
}

// values yields rows of any type.
func values[T any](rows []T) iter.Seq[any] {
	return func(yield func(any) bool) {
		for i := range rows {
			if !yield(&rows[i]) {
				return
			}
		}
	}
}

// writeRows writes a list as printJSON prints one, a row at a time: who reads only its beginning is not kept waiting for its end, and it need not be held whole.
func (c *command) writeRows(out *bufio.Writer, name string, rows iter.Seq[any], more []member) error {
	outer, inner, blank := "\n  ", "\n    ", " "
	if c.watch > 0 {
		outer, inner, blank = "", "", ""
	}
	fmt.Fprintf(out, `{%s"version":%s1,%s%q:%s[`, outer, blank, outer, name, blank)
	n := 0
	for row := range rows {
		b, err := encode(row)
		if err != nil {
			return err
		}
		if n++; n > 1 {
			out.WriteByte(',')
		}
		out.WriteString(inner)
		if c.watch > 0 {
			out.Write(b)
			continue
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, b, "    ", "  "); err != nil {
			return err
		}
		if _, err := out.Write(indented.Bytes()); err != nil {
			return err
		}
	}
	if n > 0 {
		out.WriteString(outer)
	}
	out.WriteByte(']')
	for _, m := range more {
		fmt.Fprintf(out, `,%s%q:%s%d`, outer, m.name, blank, m.value)
	}
	_, err := out.WriteString(outer[:min(1, len(outer))] + "}\n")
	return err
}

// printJSON prints {"version": 1, name: value}. Fields are added to it and never changed. What is printed again and again has a line each.
func (c *command) printJSON(name string, value any) error {
	b, err := encode(value)
	if err != nil {
		return err
	}
	whole := fmt.Appendf(nil, `{"version":1,%q:%s}`, name, b)
	var out bytes.Buffer
	if c.watch > 0 {
		out.Write(whole)
	} else if err := json.Indent(&out, whole, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = c.out.Write(out.Bytes())
	return err
}

// encode returns a value as JSON, in which what would steer a terminal is escaped: encoding/json does so with the control characters of ASCII alone.
func encode(value any) ([]byte, error) {
	b, err := json.Marshal(value)
	return schema.Escape(b), err
}

// printService prints a service's details as JSON.
func (c *command) printService(d broker.ServiceDetails) error {
	empty(&d.Endpoints, &d.Program, &d.Allow.Open, &d.Allow.Register, &d.Allow.Admin)
	return c.printJSON("service", d)
}

// empty makes lists that are nil, which JSON would show as null, empty ones.
func empty[T any](lists ...*[]T) {
	for _, l := range lists {
		if *l == nil {
			*l = []T{}
		}
	}
}

// printPairs prints names with their values, a line for each that has one.
func (c *command) printPairs(lines [][2]string) error {
	width := 9
	for _, l := range lines {
		if l[1] != "" {
			width = max(width, len(l[0]))
		}
	}
	var out bytes.Buffer
	for _, l := range lines {
		if l[1] != "" {
			fmt.Fprintf(&out, "%-*s  %s\n", width, l[0], wire.Printable(l[1], 2048))
		}
	}
	_, err := c.out.Write(out.Bytes())
	return err
}
