package quota_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/internal/doctable"
)

func read(t testing.TB, document string) (quota.Limits, []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), quota.Name)
	if err := os.WriteFile(path, []byte(document), 0o644); err != nil {
		t.Fatal(err)
	}
	limits, problems := quota.Read(path)
	var texts []string
	for _, p := range problems {
		texts = append(texts, strings.TrimPrefix(p.Error(), path))
	}
	return limits, texts
}

func TestAFileSaysHowTheLimitsDiffer(t *testing.T) {
	with := func(change func(*quota.Limits)) quota.Limits {
		l := quota.Defaults()
		change(&l)
		return l
	}
	for document, want := range map[string]quota.Limits{
		"":                                    quota.Defaults(),
		"[quota]\n":                           quota.Defaults(),
		"[quota.others]\nsessions = 7\n":      with(func(l *quota.Limits) { l.Others[quota.Sessions] = 7 }),
		"[quota]\nown = { descriptors = 9 }":  with(func(l *quota.Limits) { l.Own[quota.Descriptors] = 9 }),
		"[quota.together]\nregistrations = 0": with(func(l *quota.Limits) { l.Together[quota.Registrations] = 0 }),
		"[quota.users.1000]\nconnections = 3\nopens_per_second = 0\n[quota.others]\nwaiting = 5": with(func(l *quota.Limits) {
			l.Others[quota.Waiting] = 5
			share := l.Others
			share[quota.Connections], share[quota.Opens] = 3, 0
			l.Users = map[uint32]quota.Share{1000: share}
		}),
		"[quota.users.root]\nsessions = 5": with(func(l *quota.Limits) {
			share := l.Own
			share[quota.Sessions] = 5
			l.Users = map[uint32]quota.Share{0: share}
		}),
	} {
		if got, problems := read(t, document); len(problems) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n%v\n%+v, want\n%+v", document, problems, got, want)
		}
	}
}

func TestWhatIsWrongIsToldWithItsLineAndSetsNothing(t *testing.T) {
	for document, want := range map[string]string{
		"quota = 1":                                           ":1: quota: want a table, and this is an integer",
		"[quotas]":                                            ":1: quotas: unknown key: did you mean quota?",
		"[quota.other]\nsessions = 1":                         ":1: quota.other: unknown key: did you mean others?",
		"[quota.others]\nsession = 1":                         ":2: quota.others.session: unknown key: did you mean sessions?",
		"[quota.others]\nsessions = \"7\"":                    ":2: quota.others.sessions: want an integer, and this is a string",
		"[quota.others]\nsessions = -1":                       ":2: quota.others.sessions: -1: want 0 to 16777216",
		"[quota.own]\nconnections = 0":                        ":2: quota.own.connections: 0: want 1 to 16777216",
		"[quota.own]\nsessions = 0":                           ":2: quota.own.sessions: 0: want 1 to 16777216",
		"[quota.own]\nbroker_sessions = 0":                    ":2: quota.own.broker_sessions: 0: want 1 to 16777216",
		"[quota.users.root]\n\ndescriptors = 0":               ":3: quota.users.root.descriptors: 0: want 1 to 16777216",
		"quota.users.1000 = { sessions = -1 }":                ":1: quota.users.1000.sessions: -1: want 0 to 16777216",
		"[quota.users.4294967295]\nwaiting = 1":               `:1: quota.users.4294967295: no user is called "4294967295", and it is no number of one`,
		"[quota.users.nobody-here]\nwaiting = 1":              `:1: quota.users.nobody-here: no user is called "nobody-here", and it is no number of one`,
		"[quota.users.0]\nwaiting = 1\n[quota.users.root]\n":  `:3: quota.users.root: uid 0 is also "0"`,
		"[quota.users]\n1000 = 5":                             ":2: quota.users.1000: want a table, and this is an integer",
		"[quota.others]\nsessions = 1\n[quota.others]\nx = 1": "no TOML",
	} {
		limits, problems := read(t, document)
		if len(problems) != 1 || !strings.Contains(problems[0], want) {
			t.Errorf("%s\n%q, want %q", document, problems, want)
		}
		if !reflect.DeepEqual(limits, quota.Limits{}) {
			t.Errorf("%s\nsets %+v", document, limits)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("[quota.others]\nsessions = 7\n[quota.users.root]\nwaiting = 5\n")
	f.Add("quota = { own = { connections = 0 } }")
	f.Fuzz(func(t *testing.T, document string) {
		limits, problems := read(t, document)
		if len(problems) > 0 {
			return
		}
		if limits.Own[quota.Sessions] == 0 || limits.Own[quota.BrokerSessions] == 0 || limits.Own[quota.Descriptors] == 0 {
			t.Fatalf("%q is taken, and lets no operator in: %v", document, limits.Own)
		}
		for _, share := range []quota.Share{limits.Own, limits.Others, limits.Together} {
			for _, k := range quota.Kinds() {
				if share[k] < 0 || share[quota.Connections] == 0 || share[quota.Waiting] == 0 {
					t.Fatalf("%q is taken, and has %v", document, share)
				}
			}
		}
	})
}

func TestTheDocumentationHasTheDefaults(t *testing.T) {
	number := func(n int) string {
		switch {
		case n == 0:
			return "any number"
		case n >= 10_000:
			return fmt.Sprintf("%d,%03d", n/1000, n%1000)
		}
		return strconv.Itoa(n)
	}
	all := quota.Defaults()
	var want strings.Builder
	want.WriteString("| key | counts | `others`: each other user | `together`: all others | `own`: root, the broker's user, each |\n| --- | --- | --- | --- | --- |\n")
	for _, k := range quota.Kinds() {
		want.WriteString(fmt.Sprintf("| `%s` | %v | %s | %s | %s |\n", k.Key(), k, number(all.Others[k]), number(all.Together[k]), number(all.Own[k])))
	}
	doctable.Holds(t, "../../docs/operating.md", "quotas", want.String())
}
