package stage

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Programs is the folder of the programs that are tested: brokerd, brokerctl and broker-run. Run sets it.
var Programs string

// Program returns the path of one of the programs that are tested.
func Program(name string) string { return filepath.Join(Programs, name) }

// Run builds the programs, with the race detector where the tests have it, runs the tests, and removes the programs. It returns the exit code.
func Run(m *testing.M) int {
	var err error
	if Programs, err = os.MkdirTemp("", "fairlead-programs-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(Programs)
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build() error {
	if err := os.Chmod(Programs, 0o755); err != nil { // some tests run them as another user
		return err
	}
	args := []string{"build", "-o", Programs}
	if RaceEnabled {
		args = append(args, "-race")
	}
	const commands = "github.com/fairlead-dev/fairlead/cmd/"
	cmd := exec.Command("go", append(args, commands+"brokerd", commands+"brokerctl", commands+"broker-run")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}
