package server_test

import (
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network/server"
)

func TestEachMalformedNetworkHasItsOwnSentence(t *testing.T) {
	said := map[string]string{}
	for _, text := range []string{
		"", "default", "default=", "=10.0.0.0/24", "a b=10.0.0.0/24", "default=10.0.0.0", "default=10.0.0.0/33", "default=10.0.0.1/24", "default=10.0.0.1/32",
		"default=fd00::1/64", "default=::ffff:10.0.0.0/120", "default=224.0.0.0/24", "default=0.0.0.0/0",
	} {
		_, err := server.ParseNetwork(text)
		if err == nil {
			t.Errorf("%q is taken", text)
			continue
		}
		if other, twice := said[err.Error()]; twice {
			t.Errorf("%q and %q have the same sentence: %v", text, other, err)
		}
		said[err.Error()] = text
	}
}

func TestNetworksGoTogether(t *testing.T) {
	for _, test := range []struct {
		texts []string
		names []string // in the sentence; none: it is right
	}{
		{[]string{"a=10.0.0.0/24", "b=10.0.1.0/24", "c=10.1.0.0/31"}, nil},
		{[]string{"a=10.0.0.0/24", "a=10.0.1.0/24"}, []string{"a is there twice"}},
		{[]string{"a=10.0.0.0/24", "x=10.9.0.0/24", "b=10.0.0.0/16"}, []string{"10.0.0.0/24 of network a", "b=10.0.0.0/16", "overlap"}},
		{nil, []string{"0 networks"}},
	} {
		err := server.CheckNetworks(networks(t, test.texts...))
		if (err == nil) != (test.names == nil) {
			t.Errorf("%v: %v", test.texts, err)
		}
		for _, name := range test.names {
			if err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%v: %v does not say %q", test.texts, err, name)
			}
		}
	}
}
