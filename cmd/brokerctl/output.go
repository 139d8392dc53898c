package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
)

// printList prints rows as the flags say: as a table or as JSON, with how many there are.
func printList[T any](c *command, name string, l cli.Listing[T], rows []T) error {
	if !c.json {
		return l.Print(c.out, c.view, rows)
	}
	shown := l.Arrange(c.view, rows)
	empty(&shown)
	return c.printMembers(name, shown, fmt.Sprintf(`,"total":%d`, len(rows)))
}

// printJSON prints {"version": 1, name: value}. Fields are added to it and never changed.
func (c *command) printJSON(name string, value any) error { return c.printMembers(name, value, "") }

// printMembers is printJSON with more members behind the value. What is printed again and again has a line each.
func (c *command) printMembers(name string, value any, more string) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	whole := fmt.Appendf(nil, `{"version":1,%q:%s%s}`, name, b, more)
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
