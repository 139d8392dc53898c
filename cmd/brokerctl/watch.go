package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// shortestWatch is the shortest pause that --watch takes.
const shortestWatch = 100 * time.Millisecond

// What a terminal is told, see console_codes(4).
const (
	toTop        = "\x1b[H"
	clearLine    = "\x1b[K"
	clearBelow   = "\x1b[J"
	cutLongLines = "\x1b[?7l"
	wrapLines    = "\x1b[?7h"
	clearAll     = "\x1b[2J"
)

// watched does a command again and again, until ^C or until nobody reads what it prints. On a terminal each takes the place of the one before; elsewhere they are
// blocks with an empty line between them, and as JSON a line each.
func (c *command) watched(name string, once func(context.Context) error) error {
	ctx, stop := c.untilUnwanted(context.Background())
	defer stop()
	out, screen := c.out, c.terminal()
	if screen {
		io.WriteString(out, cutLongLines+clearAll)
		defer io.WriteString(out, wrapLines)
	}
	for first := true; ; first = false {
		var block bytes.Buffer
		c.out = &block
		err := once(ctx)
		c.out = out
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case screen:
			_, err = out.Write(c.redrawn(name, block.Bytes()))
		case !first && !c.json:
			_, err = out.Write(append([]byte("\n"), block.Bytes()...))
		default:
			_, err = out.Write(block.Bytes())
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(c.watch):
		case <-ctx.Done():
			return nil
		}
	}
}

// redrawn is a block as it takes the place of the one before, as far as the terminal has lines.
func (c *command) redrawn(name string, block []byte) []byte {
	lines := bytes.SplitAfter(bytes.TrimSuffix(block, []byte("\n")), []byte("\n"))
	rows := 24
	if size, err := unix.IoctlGetWinsize(int(c.out.(*os.File).Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 {
		rows = int(size.Row)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%sbrokerctl %s, every %v: %s%s\n", toTop, name, c.watch, time.Now().Format(time.TimeOnly), clearLine)
	most := max(1, rows-2) // beside that line, and the one that is cut off
	for i, line := range lines {
		if i == most && len(lines) > most+1 {
			fmt.Fprintf(&b, "… %d more lines%s", len(lines)-most, clearLine)
			break
		}
		b.Write(bytes.TrimSuffix(line, []byte("\n")))
		b.WriteString(clearLine)
		if i < len(lines)-1 {
			b.WriteByte('\n')
		}
	}
	b.WriteString(clearBelow)
	return b.Bytes()
}
