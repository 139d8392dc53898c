package process_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// Each connection to a broker asks for its user and all its groups.
func TestWhereAllIDsAreMappedNoneIsUnmappedAndNothingIsReadToSaySo(t *testing.T) {
	for kind, unmapped := range map[string]func(uint32) bool{"uid": process.UnmappedUser, "gid": process.UnmappedGroup} {
		text, err := os.ReadFile("/proc/self/" + kind + "_map")
		if err != nil {
			t.Fatal(err)
		}
		var inside, outside, count uint64
		fmt.Sscan(string(text), &inside, &outside, &count)
		const nobody = 65534 // what the kernel shows of an id that is not mapped
		if whole := count == 1<<32-1; unmapped(nobody) == whole || unmapped(1) {
			t.Errorf("with the map %q %s %d is unmapped: %t, and 1: %t", text, kind, nobody, unmapped(nobody), unmapped(1))
		} else if whole {
			if n := testing.AllocsPerRun(10, func() { unmapped(nobody) }); n != 0 {
				t.Errorf("with the map %q each question allocates %v times: something is read", text, n)
			}
		}
	}
}
