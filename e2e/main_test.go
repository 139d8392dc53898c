package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

var long = flag.Bool("long", false, "run the tests with their full counts")

// patience is how long a test waits for what must happen. No test measures with it.
const patience = 30 * time.Second

// programs is the folder of the programs that are tested.
var programs string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	flag.Parse()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	var err error
	if programs, err = os.MkdirTemp("", "fairlead-e2e-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(programs)
	if err := os.Chmod(programs, 0o755); err != nil { // one test runs them as another user
		return 1, err
	}
	if err := stage.Build(programs); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// program returns the path of one of the programs that are tested.
func program(name string) string { return filepath.Join(programs, name) }

// count returns how often something is done: ordinarily, or with -long.
func count(ordinary, full int) int {
	if *long {
		return full
	}
	return ordinary
}
