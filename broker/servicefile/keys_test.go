package servicefile_test

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
)

// TestEveryKeyIsDocumentedAndEveryDocumentedKeyIsRead takes the keys from the fields of a Service.
func TestEveryKeyIsDocumentedAndEveryDocumentedKeyIsRead(t *testing.T) {
	want := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[servicefile.Service]()) {
		switch field.Name {
		case "File": // where it was read from
		case "Allow":
			for _, list := range reflect.VisibleFields(field.Type) {
				want["allow."+snake(list.Name)] = true
			}
		default:
			want[snake(field.Name)] = true
		}
	}
	folder := t.TempDir()
	for _, k := range servicefile.Keys() {
		if !want[k.Name] {
			t.Errorf("%s is documented, and no field or twice", k.Name)
		}
		delete(want, k.Name)
		if k.Type == "" || k.Default == "" || k.Text == "" || k.Launchd == "" && k.Differs == "" {
			t.Errorf("%s is not documented well: %+v", k.Name, k)
		}
		// No key takes a date, so that each says that it is known, and what it wants.
		path := put(t, filepath.Join(folder, k.Name), k.Name+" = 1979-05-27")
		_, problems := servicefile.Read(path)
		told := 0
		for _, p := range problems {
			if p.Key == k.Name && p.Line == 1 && strings.HasPrefix(p.Rule, "want ") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%s is not read: %v", k.Name, texts(problems))
		}
	}
	if len(want) > 0 {
		t.Errorf("not documented: %v", want)
	}
}

func TestWhatLaunchdCallsAKeyIsAnsweredWithOurs(t *testing.T) {
	folder := t.TempDir()
	for _, k := range servicefile.Keys() {
		for name := range strings.SplitSeq(k.Launchd, ", ") {
			if name == "" || strings.Contains(name, ".") || strings.EqualFold(name, k.Name) && name == k.Name {
				continue
			}
			path := put(t, filepath.Join(folder, name), "name = 'a'\n"+name+" = 1")
			_, problems := servicefile.Read(path)
			want := path + ":2: " + name + ": unknown key: what launchd calls " + name + " is " + k.Name + " here"
			if got := texts(problems); len(got) != 1 || got[0] != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
}

func TestAResourceHasTheKernelsNumber(t *testing.T) {
	// asm-generic/resource.h
	for name, want := range map[string]int{
		"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "nproc": 6, "nofile": 7, "memlock": 8, "as": 9, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
	} {
		if got, ok := servicefile.Resource(name); !ok || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
	for _, name := range []string{"", "rss", "locks", "NOFILE", "RLIMIT_NOFILE"} {
		if n, ok := servicefile.Resource(name); ok {
			t.Errorf("%q: %d", name, n)
		}
	}
	for text, l := range map[string]servicefile.Limit{
		"0": {}, "5": {Soft: 5, Hard: 5}, "1:2": {Soft: 1, Hard: 2}, "3:unlimited": {Soft: 3, Hard: servicefile.Unlimited},
		"unlimited": {Soft: servicefile.Unlimited, Hard: servicefile.Unlimited},
	} {
		if got := l.String(); got != text {
			t.Errorf("%#v is shown as %s, want %s", l, got, text)
		}
	}
}

// snake returns a field's name as a key.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if r >= 'A' && r <= 'Z' && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
