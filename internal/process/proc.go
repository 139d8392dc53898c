package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxArguments bounds what Arguments reads, in bytes.
const maxArguments = 64 << 10

// maxProgram bounds what Program returns, in bytes.
const maxProgram = 64

// Program returns the name of the program that the process runs, for display only: a process can choose it.
// It is the last part of the executable's path or, where that may not be read, the thread's name, which is cut at 15
// bytes. What is no UTF-8 or cannot be printed is shown as '?', and no more than the first 64 bytes are returned. It is empty
// if the process is gone or not known.
func (h *Handle) Program() string {
	name := h.executable()
	if name == "" {
		comm, err := os.ReadFile(h.proc("comm"))
		if err != nil {
			return ""
		}
		name = strings.TrimSuffix(string(comm), "\n")
	}
	if h.pid <= 0 || h.check() != nil {
		return ""
	}
	return display(name)
}

// display returns a name as it may be shown: at most maxProgram bytes of whole, printable characters.
func display(name string) string {
	name = strings.Map(printable, strings.ToValidUTF8(name, "?"))
	if len(name) <= maxProgram {
		return name
	}
	end := maxProgram
	for !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end]
}

// executable returns the last part of the executable's path, or nothing if that cannot be read.
func (h *Handle) executable() string {
	path, err := os.Readlink(h.proc("exe"))
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// Arguments returns the command line of the process, for display only: a process can change it.
// No more than the first 64 KiB are read. It is empty for one that has exited but not for its handle yet, and for the
// kernel's own. The error wraps ErrGone if the process is gone.
func (h *Handle) Arguments() ([]string, error) {
	text, err := readBounded(h.proc("cmdline"), maxArguments)
	if goneErr := h.check(); goneErr != nil {
		err = goneErr
	}
	if err != nil {
		return nil, fmt.Errorf("read the arguments of process %d: %w", h.pid, err)
	}
	if len(text) == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// proc returns the path of a file in the folder of the process. It is no file if the number is not known.
func (h *Handle) proc(name string) string {
	return "/proc/" + strconv.Itoa(h.pid) + "/" + name
}

func readBounded(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, limit))
	return text, errors.Join(err, file.Close())
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}
