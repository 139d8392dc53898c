package main

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// printJSON prints {"version": 1, name: value}. Fields are added to it and never changed.
func (c *command) printJSON(name string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if string(b) == "null" {
		b = []byte("[]") // the only values that may be nil are lists
	}
	var out bytes.Buffer
	if err := json.Indent(&out, fmt.Appendf(nil, `{"version":1,%q:%s}`, name, b), "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = c.out.Write(out.Bytes())
	return err
}
