package pace_test

import (
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/internal/pace"
)

func TestSoManyLinesASecondAreToldAndTheOthersCounted(t *testing.T) {
	var l pace.Limiter
	at := time.Unix(1000, 0)
	for n := range pace.Lines + 5 {
		if tell, untold := l.Admit(at); tell != (n < pace.Lines) || untold != 0 {
			t.Errorf("line %d: %v, and %d were not told", n, tell, untold)
		}
	}
	if tell, untold := l.Admit(at.Add(time.Second)); !tell || untold != 5 {
		t.Errorf("a second later: %v, and %d were not told, want 5", tell, untold)
	}
	if tell, untold := l.Admit(at.Add(time.Second)); !tell || untold != 0 {
		t.Errorf("then: %v, and %d were not told, want none", tell, untold)
	}
}
