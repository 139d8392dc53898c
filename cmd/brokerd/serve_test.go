package main_test

import (
	"strings"
	"testing"

	brokerd "github.com/fairlead-dev/fairlead/cmd/brokerd"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestOneFlagSaysWhichBrokerToBe(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	user, err := socket.UserPath()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path         string
		system, user bool
		want         string // empty: refused
	}{
		{"/x/s", false, false, "/x/s"},
		{"", true, false, socket.SystemPath},
		{"", false, true, user},
		{"/x/s", true, false, ""},
		{"/x/s", false, true, ""},
		{"", true, true, ""},
		{"/x/s", true, true, ""},
	} {
		got, err := brokerd.ServePath(test.path, test.system, test.user)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "give one of them") {
			t.Errorf("%+v: %v does not say what to do", test, err)
		}
	}
}
