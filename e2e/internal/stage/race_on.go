//go:build race

package stage

// RaceEnabled says that this program has the race detector, and with it the programs that Build builds.
const RaceEnabled = true
