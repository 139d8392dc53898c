//go:build race

package e2e_test

// raceEnabled says that this test, and with it the programs that it builds, has the race detector.
const raceEnabled = true
