package process_test

import (
	"os"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
)

func TestStartedIsWhenTheProcessWasStarted(t *testing.T) {
	id, err := process.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(id.Started()); age < -time.Second || age > 10*time.Minute {
		t.Errorf("this test's process is %v old", age)
	}
	if at := (process.ID{}).Started(); !at.IsZero() {
		t.Errorf("no process was started at %v", at)
	}
}
