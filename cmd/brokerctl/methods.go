package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// describe asks an endpoint for its methods. A service that does not know that question is wire.UnknownMethod.
func describe(ctx context.Context, s *client.Session) (*schema.Description, error) {
	raw, err := client.Call[wire.Raw](ctx, s, schema.Describe, nil)
	if err != nil {
		return nil, err
	}
	d, err := schema.Parse(raw)
	if err != nil {
		return nil, wire.Errorf(wire.Unsupported, "what %s says of its methods cannot be read: %v", s.Endpoint(), err)
	}
	return d, nil
}

func (c *command) methods(ctx context.Context, endpoint string) error {
	var d *schema.Description
	err := c.on(ctx, endpoint, func(s *client.Session) (err error) {
		d, err = describe(ctx, s)
		return err
	})
	if wire.CodeOf(err) == wire.UnknownMethod {
		return wire.Errorf(wire.UnknownMethod, "%s does not say which methods it has: its service is not built with a library that does", endpoint)
	}
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("description", d)
	}
	return c.printMethods(d)
}

// printMethods prints the methods, and then the fields of each struct that they are made of.
func (c *command) printMethods(d *schema.Description) error {
	var out bytes.Buffer
	t := cli.NewTable("METHOD", "KIND", "REQUEST", "REPLY", "WHAT IT DOES")
	for _, m := range d.Methods {
		t.Row(m.Name, m.Kind, request(d, m), reply(d, m), m.Doc)
	}
	if err := t.Print(&out); err != nil {
		return err
	}
	for i, typ := range d.Types {
		if typ.Kind != schema.Struct || len(typ.Fields) == 0 {
			continue
		}
		width := 0
		for _, f := range typ.Fields {
			width = max(width, len(wire.Printable(f.Name, schema.MaxName)))
		}
		fmt.Fprintf(&out, "\n%s\n", d.Expr(i))
		for _, f := range typ.Fields {
			fmt.Fprintf(&out, "  %-*s  %s\n", width, wire.Printable(f.Name, schema.MaxName), d.Expr(f.Type))
		}
	}
	_, err := c.out.Write(out.Bytes())
	return err
}

// request is what a client sends, for a cell.
func request(d *schema.Description, m schema.Method) string {
	switch services.Kind(m.Kind) {
	case services.KindStream:
		return "bytes"
	case services.KindStreaming:
		if !d.IsEmpty(m.In) {
			return d.Expr(m.Request) + ", and any number of " + d.Expr(m.In)
		}
	}
	return d.Expr(m.Request)
}

// reply is what a client receives, for a cell.
func reply(d *schema.Description, m schema.Method) string {
	switch services.Kind(m.Kind) {
	case services.KindOneWay:
		return ""
	case services.KindStream:
		return "bytes"
	case services.KindStreaming:
		return "any number of " + d.Expr(m.Out)
	}
	return d.Expr(m.Reply)
}

// noMethod says that an endpoint has no such method, and which may be meant.
func noMethod(d *schema.Description, endpoint, name string) error {
	var names []string
	for _, m := range d.Methods {
		names = append(names, m.Name)
	}
	text := fmt.Sprintf("%s has no method %s", endpoint, wire.Printable(name, wire.MaxMethod))
	if near := nearest.Of(name, names); len(near) > 0 {
		text += ": is it " + wire.Printable(either(near), wire.MaxText) + "?"
	} else if len(names) > 0 {
		text += ": there is " + wire.Printable(strings.Join(names, ", "), wire.MaxText)
	}
	return wire.Errorf(wire.UnknownMethod, "%s", text)
}
