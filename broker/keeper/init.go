package keeper

import (
	"os"
	"syscall"
)

// The argv[0] by which this program knows what it is.
const (
	keeperName = "fairlead-keeper" // its second argument is the program, for people
	execName   = "fairlead-exec"   // its second argument is how many files the program inherits
)

// This runs on the main thread, which lasts as long as the process. The program's death signal belongs to the thread that forked it, and what the
// second stage sets belongs to the thread that executes the program.
func init() {
	if len(os.Args) != 2 {
		return
	}
	switch os.Args[0] { // os.Exit has hooks, and sleeps for 1 s under the race detector
	case keeperName:
		syscall.Exit(keep())
	case execName:
		syscall.Exit(execute(os.Args[1]))
	}
}

// setName makes ps show what this process is; nothing depends on it.
func setName(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }
