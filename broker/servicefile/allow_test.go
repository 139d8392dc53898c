package servicefile_test

import (
	"errors"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestARuleFitsWhomItNames(t *testing.T) {
	who := servicefile.Who{UID: 5, GID: 60, Groups: []uint32{7, 8}}
	root := servicefile.Who{}
	tests := []struct {
		rules     []string
		who, root bool
	}{
		{nil, false, false},
		{[]string{"any"}, true, true},
		{[]string{"uid:5"}, true, false},
		{[]string{"uid:7"}, false, false},
		{[]string{"uid:0"}, false, true},
		{[]string{"gid:60"}, true, false},
		{[]string{"gid:8"}, true, false},
		{[]string{"gid:5"}, false, false},
		{[]string{"gid:0"}, false, true},
		{[]string{"user:root"}, false, true},
		{[]string{"group:root"}, false, true},
		{[]string{"uid:9", "gid:9", "uid:5"}, true, false},
		{[]string{"user:root", "gid:7"}, true, true},
		{[]string{"uid:4294967294"}, false, false},
	}
	for _, test := range tests {
		list := rules(t, test.rules...)
		if got := list.Permit(who); got != test.who {
			t.Errorf("%v permits %+v: %v", list, who, got)
		}
		if got := list.Permit(root); got != test.root {
			t.Errorf("%v permits root: %v", list, got)
		}
		if got := list.String(); got != strings.Join(test.rules, ", ") {
			t.Errorf("%q is shown as %q", test.rules, got)
		}
	}
	if (servicefile.Rule{}).Permit(root) || (servicefile.Rules{{}}).Permit(root) {
		t.Error("a rule that was never written fits root")
	}
}

func TestWhatIsNoRuleIsRefused(t *testing.T) {
	tests := []struct {
		text string
		code wire.Code
		want string
	}{
		{"", wire.Malformed, `"": want "uid:N", "gid:N", "user:NAME", "group:NAME" or "any"`},
		{"root", wire.Malformed, `"root": want "uid:N"`},
		{"any:", wire.Malformed, `"any:": want`},
		{"Any", wire.Malformed, `"Any": want`},
		{"pid:1", wire.Malformed, `"pid:1": want`},
		{" uid:1", wire.Malformed, `" uid:1": want`},
		{"uid:", wire.Malformed, `"": want a number`},
		{"uid:-1", wire.Malformed, `"-1": want a number`},
		{"uid:+1", wire.Malformed, `"+1": want a number`},
		{"uid:0x1", wire.Malformed, `"0x1": want a number`},
		{"uid:root", wire.Malformed, `"root": want a number`},
		{"uid:4294967295", wire.Malformed, `"4294967295": want a number from 0 to 4294967294`},
		{"gid:4294967296", wire.Malformed, `"4294967296": want a number`},
		{"user:", wire.Malformed, `"" is no name`},
		{"user:0", wire.Malformed, `"0" is a number and no name: write "uid:0"`},
		{"group:0", wire.Malformed, `"0" is a number and no name: write "gid:0"`},
		{"user:root\x00", wire.Malformed, `"root\x00" is no name`},
		{"group:ro:ot", wire.Malformed, `"ro:ot" is no name`},
		{"user:" + strings.Repeat("u", 1000), wire.Malformed, `"uuu`},
		{"user:no-such-user", wire.NotFound, "the system knows no user no-such-user"},
		{"group:no-such-group", wire.NotFound, "the system knows no group no-such-group"},
	}
	for _, test := range tests {
		rule, err := servicefile.ParseRule(test.text)
		if !errors.Is(err, test.code) || !strings.HasPrefix(err.Error(), test.want) || len(err.Error()) > 300 || rule != (servicefile.Rule{}) {
			t.Errorf("%q: %+v, %v, want %s", test.text, rule, err, test.want)
		}
	}
}

func TestAnAccountIsWhatTheSystemSays(t *testing.T) {
	own := servicefile.Account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		own.Groups = append(own.Groups, uint32(g))
	}
	slices.Sort(own.Groups)
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	root, err := user.Lookup("root")
	if err != nil {
		t.Fatal(err)
	}
	rootGroups, err := root.GroupIds()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		user, group string
		name, home  string
		uid, gid    uint32
		groups      []uint32
	}{
		{"", "", self.Username, self.HomeDir, own.UID, own.GID, own.Groups},
		{"", "root", self.Username, self.HomeDir, own.UID, 0, own.Groups},
		{"root", "", "root", root.HomeDir, 0, number(t, root.Gid), numbers(t, rootGroups)},
		{"0", "", "root", root.HomeDir, 0, number(t, root.Gid), numbers(t, rootGroups)},
		{"root", nobodysGroup(t), "root", root.HomeDir, 0, nobody, numbers(t, rootGroups)},
		{"root", "65534", "root", root.HomeDir, 0, nobody, numbers(t, rootGroups)},
	}
	for _, test := range tests {
		a, err := servicefile.Service{User: test.user, Group: test.group}.Account()
		if err != nil || a.Name != test.name || a.Home != test.home || a.UID != test.uid || a.GID != test.gid || !slices.Equal(a.Groups, test.groups) || !strings.HasPrefix(a.Shell, "/") {
			t.Errorf("%q, %q: %+v, %v, want %+v", test.user, test.group, a, err, test)
		}
	}
	for _, s := range []servicefile.Service{{User: "no-such-user"}, {Group: "no-such-group"}, {User: "4000000000"}, {User: "root", Group: "4000000000"}} {
		if a, err := s.Account(); !errors.Is(err, wire.NotFound) {
			t.Errorf("%q, %q: %+v, %v, want %s", s.User, s.Group, a, err, wire.NotFound)
		}
	}
}

// TestTheShellIsThatOfPasswd looks at all accounts that passwd(5) has.
func TestTheShellIsThatOfPasswd(t *testing.T) {
	b, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 7 || fields[6] == "" || seen[fields[0]] {
			continue
		}
		seen[fields[0]] = true
		if a, err := (servicefile.Service{User: fields[0]}).Account(); err != nil || a.Shell != fields[6] {
			t.Errorf("%s: %+v, %v, want %s", fields[0], a, err, fields[6])
		}
	}
	if len(seen) == 0 {
		t.Error("/etc/passwd has no account")
	}
}

func number(t *testing.T, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

func numbers(t *testing.T, list []string) []uint32 {
	t.Helper()
	var numbers []uint32
	for _, s := range list {
		numbers = append(numbers, number(t, s))
	}
	slices.Sort(numbers)
	return numbers
}

// nobodysGroup returns the name of group 65534, which distributions disagree about.
func nobodysGroup(t *testing.T) string {
	t.Helper()
	g, err := user.LookupGroupId("65534")
	if err != nil {
		t.Fatal(err)
	}
	return g.Name
}
