package servicefile

import (
	"errors"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
	"github.com/fairlead-dev/fairlead/wire"
)

// An Account is whom a service's instances run as.
type Account struct {
	Name     string // the number where the system knows no name
	UID, GID uint32
	Groups   []uint32 // supplementary groups, sorted
	Home     string   // / where the system knows none
	Shell    string   // that of /etc/passwd; /bin/sh for an account that is not in there
}

const (
	passwd       = "/etc/passwd" // passwd(5); os/user does not tell the shell
	defaultShell = "/bin/sh"     // passwd(5): what an empty field stands for
	maxAccount   = 256           // bytes of a user's or group's name: LOGIN_NAME_MAX of limits.h
)

// Account resolves whom the service's instances run as: User with its primary and supplementary groups, Group in place of the primary one. Without User it is
// the broker's own user, with the broker's groups. It is asked at every start, as accounts change. It fails with wire.NotFound for a user or group
// that the system does not know, and with the system's error where it cannot tell.
func (s Service) Account() (Account, error) {
	a, err := own()
	if s.User != "" {
		a, err = accountOf(s.User)
	}
	if err != nil || s.Group == "" {
		return a, err
	}
	a.GID, err = groupID(s.Group)
	return a, err
}

// own returns the account of this process, which needs no entry anywhere.
func own() (Account, error) {
	a := Account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: "/", Shell: defaultShell}
	a.Name = strconv.FormatUint(uint64(a.UID), 10)
	groups, err := os.Getgroups()
	if err != nil {
		return Account{}, err
	}
	for _, g := range groups {
		a.Groups = append(a.Groups, uint32(g))
	}
	slices.Sort(a.Groups)
	if u, err := user.LookupId(a.Name); err == nil {
		a.Name, a.Home, a.Shell = u.Username, u.HomeDir, shellOf(u.Username)
	}
	return a, nil
}

// accountOf returns the account of a user that is named or numbered.
func accountOf(name string) (Account, error) {
	u, err := lookupUser(name)
	if err != nil {
		return Account{}, err
	}
	a := Account{Name: u.Username, Home: u.HomeDir, Shell: shellOf(u.Username)}
	if a.UID, err = parseID(u.Uid); err != nil {
		return Account{}, err
	}
	if a.GID, err = parseID(u.Gid); err != nil {
		return Account{}, err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return Account{}, err
	}
	for _, g := range groups {
		id, err := parseID(g)
		if err != nil {
			return Account{}, err
		}
		a.Groups = append(a.Groups, id)
	}
	slices.Sort(a.Groups)
	return a, nil
}

// lookupUser finds a user. What consists of digits is a number: such a name would be taken for one elsewhere.
func lookupUser(name string) (*user.User, error) {
	if err := checkAccount(name); err != nil {
		return nil, err
	}
	find := user.Lookup
	if numeric(name) {
		find = user.LookupId
	}
	u, err := find(name)
	_, noName := errors.AsType[user.UnknownUserError](err)
	_, noNumber := errors.AsType[user.UnknownUserIdError](err)
	if noName || noNumber {
		return nil, wire.Errorf(wire.NotFound, "the system knows no user %s", name)
	}
	return u, err
}

// userID finds the number of a user that is named or numbered.
func userID(name string) (uint32, error) {
	u, err := lookupUser(name)
	if err != nil {
		return 0, err
	}
	return parseID(u.Uid)
}

// groupID finds the number of a group that is named or numbered.
func groupID(name string) (uint32, error) {
	if err := checkAccount(name); err != nil {
		return 0, err
	}
	find := user.LookupGroup
	if numeric(name) {
		find = user.LookupGroupId
	}
	g, err := find(name)
	_, noName := errors.AsType[user.UnknownGroupError](err)
	_, noNumber := errors.AsType[user.UnknownGroupIdError](err)
	if noName || noNumber {
		return 0, wire.Errorf(wire.NotFound, "the system knows no group %s", name)
	}
	if err != nil {
		return 0, err
	}
	return parseID(g.Gid)
}

// checkAccount refuses what no account is named: the C library would cut a name at NUL, and find another.
func checkAccount(name string) error {
	if name == "" || len(name) > maxAccount || strings.Contains(name, ":") || wire.Printable(name, maxAccount) != name {
		return wire.Errorf(wire.Malformed, "%s is no name and no number of a user or group", strictfile.Quote(name))
	}
	return nil
}

func numeric(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// parseID reads a uid or gid. The last number is none: the kernel takes it for "leave as it is", setresuid(2).
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, wire.Errorf(wire.Malformed, "%s: want a number from 0 to 4294967294", strictfile.Quote(s))
	}
	return uint32(n), nil
}

// shellOf returns the shell of a user that passwd(5) has.
func shellOf(name string) string {
	b, err := os.ReadFile(passwd)
	if err != nil {
		return defaultShell
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(fields) == 7 && fields[0] == name && fields[6] != "" {
			return fields[6]
		}
	}
	return defaultShell
}
