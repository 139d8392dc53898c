// Package cli is the voice that the commands share: where they log, which version they are, and how they say what is wrong.
package cli

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Terminal reports whether f is a terminal.
func Terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Version returns the version that this program was built as.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

// Fail prints an error of a command, as Said has it, and what to do about it if hint is not empty.
func Fail(w io.Writer, command string, err error, hint string) {
	fmt.Fprintf(w, "%s: %s\n", command, Said(err.Error()))
	if hint != "" {
		fmt.Fprintf(w, "%s: hint: %s\n", command, hint)
	}
}
