package main

import (
	"context"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/explain"
	"github.com/fairlead-dev/fairlead/wire"
)

// explain prints what there is to know of one code.
func (c *command) explain(_ context.Context, code string) error {
	e, err := explain.Of(code)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("code", e)
	}
	lines := []string{string(e.Code), "", e.Means}
	if e.End != "" {
		lines = append(lines, "", "As the end of a session: "+e.End)
	}
	lines = append(lines, "", "Usual cause: "+e.Cause, "", "What to do: "+e.Do, "")
	_, err = c.out.Write([]byte(strings.Join(lines, "\n")))
	return err
}

// explainAll prints which codes there are.
func (c *command) explainAll(context.Context) error {
	if c.json {
		return c.printJSON("codes", explain.Codes())
	}
	t := cli.NewTable("CODE", "MEANS")
	for _, e := range explain.Codes() {
		t.Row(string(e.Code), e.Means)
	}
	return t.Print(c.out)
}

// checkCode checks a code that sessions are looked for by.
func checkCode(code string) error {
	if code == "" {
		return nil
	}
	_, err := explain.Of(code)
	if err != nil {
		return usageError{"--end: " + wire.AsError(err).Text}
	}
	return nil
}
