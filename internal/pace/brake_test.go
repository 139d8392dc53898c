package pace_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-dev/fairlead/internal/pace"
)

func TestSoManyAreDoneInEachStretchAndTheNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := pace.Brake{Most: 5, Each: time.Second}
		began := time.Now()
		for n := range 13 {
			b.Wait(nil)
			if took, want := time.Since(began), time.Duration((n+1)/5)*time.Second; took != want {
				t.Errorf("%d are done within %v, want %v", n+1, took, want)
			}
		}
		time.Sleep(10 * time.Second) // nothing is saved up
		began = time.Now()
		for range 5 {
			b.Wait(nil)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("5 are done within %v, want 1s", took)
		}
	})
}

func TestABrakeLetsGoWhenAllIsOver(t *testing.T) {
	over := make(chan struct{})
	close(over)
	b := pace.Brake{Most: 1, Each: time.Hour}
	b.Wait(over)
}
