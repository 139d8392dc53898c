package servicefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

// FuzzRead holds that whatever a file has in it is either a service that keeps all rules or problems that can be shown.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		fullExample, "", "name", "name = 'a'", "name = 'a'\r\nnice = 99\r\n", "a = [[[{}]]]", "\"\\u0000\" = 1", "[[allow]]\n[allow.open]", "[limits]\n'a.b' = 1", "x.y.z.a.b = {c.d.e = [1, {f = 2}]}",
		"name = '''\na'''", "[allow]\nopen = ['user:\\x00', \"user:\\u0000\"]", "idle_exit = '9223372036854775807ns'", "umask = '777'\nuser = 0", "a = " + strings.Repeat("[", 20000),
		strings.Repeat("a.", 30000) + "a = 1", "\xef\xbb\xbfname = 'a'", "'" + strings.Repeat("k", 50000) + "' = 1", "environment = {" + strings.Repeat("a", 200) + " = 1}",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "a.toml")
	f.Fuzz(func(t *testing.T, document []byte) {
		if err := os.WriteFile(path, document, 0o600); err != nil {
			t.Fatal(err)
		}
		s, problems := servicefile.Read(path)
		for _, p := range problems {
			text := p.Error()
			if p.File != path || p.Line < 0 || p.Line > 1+strings.Count(string(document), "\n") || p.Rule == "" || !errors.Is(p, wire.Malformed) || len(text) > 2048 ||
				strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%#v", p)
			}
		}
		again, same := servicefile.Read(path)
		if !reflect.DeepEqual(s, again) || !reflect.DeepEqual(problems, same) {
			t.Errorf("read again: %+v, %v, at first %+v, %v", again, texts(same), s, texts(problems))
		}
		if len(problems) > 0 || len(document) == 0 {
			if !reflect.DeepEqual(s, servicefile.Service{}) {
				t.Errorf("%+v, %v", s, texts(problems))
			}
			return
		}
		if err := s.Validate(); err != nil || s.File != path || s.Name == "" || !reflect.DeepEqual(s, s.WithDefaults()) {
			t.Errorf("%+v: %v", s, err)
		}
		if _, err := s.Account(); err != nil {
			t.Error(err)
		}
	})
}
