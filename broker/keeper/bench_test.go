package keeper_test

import (
	"testing"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

// Each operation starts a program; that it is executed is the end of the time measured.
func BenchmarkStart(b *testing.B) {
	c := keeper.Config{Program: []string{"/bin/true"}}
	for b.Loop() {
		k, err := keeper.Start(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		<-k.Gone()
		k.Close()
		b.StartTimer()
	}
}
