package nearest_test

import (
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/nearest"
)

func TestAMistypedWordFindsWhatItMayHaveMeant(t *testing.T) {
	among := []string{"com.example.echo", "com.example.ecco", "com.example.counter", "fairlead.network", "list", "close"}
	for _, test := range []struct {
		word string
		want []string
	}{
		{"com.example.ehco", []string{"com.example.ecco", "com.example.echo"}},
		{"com.example.echo", []string{"com.example.echo", "com.example.ecco"}},
		{"farlead.netwrok", []string{"fairlead.network"}},
		{"lst", []string{"list"}},
		{"tsil", nil},
		{"", nil},
		{"x", nil},
		{"org.other", nil},
	} {
		if got := nearest.Of(test.word, among); !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.word, got, test.want)
		}
	}
}

func TestNoMoreThanThreeWordsAreOffered(t *testing.T) {
	if got := nearest.Of("abcd", []string{"abc1", "abc2", "abc3", "abc4"}); !slices.Equal(got, []string{"abc1", "abc2", "abc3"}) {
		t.Error(got)
	}
}
