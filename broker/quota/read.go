package quota

import (
	"maps"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/internal/strictfile"
)

// Name is what the file is called in a configuration folder.
const Name = "broker.toml"

const (
	maxFile  = 64 // KiB
	maxLimit = 1 << 24
)

// The tables of the file.
const (
	tableQuota    = "quota"
	tableOwn      = "own"
	tableOthers   = "others"
	tableTogether = "together"
	tableUsers    = "users"
)

// Read reads a broker.toml: the Defaults, and how it differs. Its rules as a file are those of a service file. With a problem there are no Limits; all problems are returned,
// in the order of the lines. What a user's own table leaves out is as without it.
//
//	[quota.others]
//	opens_per_second = 200
//	[quota.users.builder]
//	sessions = 20000
func Read(path string) (Limits, []*strictfile.Problem) {
	f := &file{File: strictfile.New(path), limits: Defaults()}
	f.Read(maxFile, f.document)
	if f.Broken() {
		return Limits{}, f.Problems()
	}
	return f.limits, nil
}

// A file is one that is being read.
type file struct {
	*strictfile.File
	limits Limits
}

func (f *file) document(values map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if k == tableQuota {
			f.quota(strictfile.Typed[map[string]any](f.File, k, values[k]))
		} else {
			f.unknown("", k, []string{tableQuota})
		}
	}
}

func (f *file) quota(values map[string]any) {
	shares := map[string]*Share{tableOwn: &f.limits.Own, tableOthers: &f.limits.Others, tableTogether: &f.limits.Together}
	known := []string{tableOwn, tableOthers, tableTogether, tableUsers}
	for _, k := range slices.Sorted(maps.Keys(values)) { // "users" is the last: it begins with what others have
		at := tableQuota + "." + strictfile.ShowKey(k)
		switch {
		case k == tableUsers:
			f.users(at, strictfile.Typed[map[string]any](f.File, at, values[k]))
		case shares[k] != nil:
			f.share(shares[k], at, values[k], k == tableOwn)
		default:
			f.unknown(tableQuota, k, known)
		}
	}
}

func (f *file) users(table string, values map[string]any) {
	f.limits.Users = map[uint32]Share{}
	named := map[uint32]string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		at := table + "." + strictfile.ShowKey(name)
		uid, ok := userID(name)
		if !ok {
			f.Problem(at, "no user is called %s, and it is no number of one", strictfile.Quote(name))
			continue
		}
		if other, twice := named[uid]; twice {
			f.Problem(at, "uid %d is also %s", uid, strictfile.Quote(other))
			continue
		}
		named[uid] = name
		share, operator := f.limits.Others, uid == 0 || int(uid) == os.Geteuid()
		if operator {
			share = f.limits.Own
		}
		f.share(&share, at, values[name], operator)
		f.limits.Users[uid] = share
	}
}

// userID returns the number of a user. A number need not be that of a user yet.
func userID(name string) (uint32, bool) {
	if u, err := user.Lookup(name); err == nil {
		name = u.Uid
	}
	n, err := strconv.ParseUint(name, 10, 32)
	return uint32(n), err == nil && n < math.MaxUint32 // that is nobody's, see setreuid(2)
}

// share sets what a table says of a share, which may be an operator's.
func (f *file) share(s *Share, table string, v any, operator bool) {
	values := strictfile.Typed[map[string]any](f.File, table, v)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		at := table + "." + strictfile.ShowKey(key)
		i := slices.IndexFunc(descriptions[:], func(d description) bool { return d.Key == key })
		if i < 0 {
			f.unknown(table, key, keys())
			continue
		}
		n := strictfile.Typed[int64](f.File, at, values[key])
		least := leastOf(Kind(i), operator)
		if !f.Wrong(at) && (n < least || n > maxLimit) {
			f.Problem(at, "%d: want %d to %d", n, least, maxLimit)
		}
		s[i] = int(n)
	}
}

// leastOf is the least that a share may have of a kind. An operator's has one of each that a command needs: without, nobody gets in who could put it right.
func leastOf(k Kind, operator bool) int64 {
	switch k {
	case Connections, Waiting:
		return 1
	case Sessions, BrokerSessions, Descriptors:
		if operator {
			return 1
		}
	}
	return 0
}

func keys() (list []string) {
	for _, d := range descriptions {
		list = append(list, d.Key)
	}
	return list
}

func (f *file) unknown(table, key string, known []string) {
	hint := ""
	if near := nearest.Of(key, known); len(near) > 0 {
		hint = ": did you mean " + strings.Join(near, " or ") + "?"
	}
	path := strictfile.ShowKey(key)
	if table != "" {
		path = table + "." + path
	}
	f.Problem(path, "unknown key%s", hint)
}
