package e2e_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

var long = flag.Bool("long", false, "run the tests with their full counts")

// patience is how long a test waits for what must happen. No test measures with it.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	flag.Parse()
	os.Exit(stage.Run(m))
}

// count returns how often something is done: ordinarily, or with -long.
func count(ordinary, full int) int {
	if *long {
		return full
	}
	return ordinary
}
