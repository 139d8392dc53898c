package servicefile_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
)

const nobody = 65534

// serviceFile returns the path of a service file in a configuration folder.
func serviceFile(folder, name string) string { return filepath.Join(folder, "services.d", name) }

// load loads folders, and checks which services come of it, and which problems by their whole texts.
func load(t *testing.T, folders []string, wantServices []string, wantProblems ...string) {
	t.Helper()
	services, problems := servicefile.Load(folders...)
	if got := names(services); !slices.Equal(got, wantServices) {
		t.Errorf("services %q, want %q", got, wantServices)
	}
	if got := texts(problems); !slices.Equal(got, wantProblems) {
		t.Errorf("problems:\ngot  %q\nwant %q", got, wantProblems)
	}
	for _, s := range services {
		if err := s.Validate(); err != nil || s.File == "" {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestAFileMasksThoseOfItsNameInLaterFolders(t *testing.T) {
	over, under := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		put(t, serviceFile(under, name+".toml"), "name = 'under."+name+"'")
	}
	put(t, serviceFile(over, "b.toml"), "name = 'over.b'")
	put(t, serviceFile(over, "bb.toml"), "name = 'over.bb'")
	put(t, serviceFile(over, "c.toml"), "")
	if err := os.Symlink(os.DevNull, serviceFile(over, "d.toml")); err != nil {
		t.Fatal(err)
	}
	broken := put(t, serviceFile(over, "e.toml"), "name = 'over.e'\nnice = 99")

	problem := broken + ":2: nice: 99: want -20 to 19"
	load(t, []string{over, under}, []string{"under.a", "over.b", "over.bb"}, problem)
	load(t, []string{under, over}, []string{"under.a", "under.b", "over.bb", "under.c", "under.d", "under.e"})
	load(t, []string{over, over, t.TempDir(), filepath.Join(under, "missing")}, []string{"over.b", "over.bb"}, problem)
	load(t, nil, []string{})
}

func TestServicesComeInTheOrderOfTheirFilesNames(t *testing.T) {
	over, under := t.TempDir(), t.TempDir()
	put(t, serviceFile(over, "20-b.toml"), "name = 'a'")
	put(t, serviceFile(over, "9.toml"), "name = 'd'")
	put(t, serviceFile(under, "10-x.toml"), "name = 'z'")
	put(t, serviceFile(under, "3.toml"), "name = 'c'")
	load(t, []string{over, under}, []string{"z", "a", "c", "d"})
}

func TestOnlyRegularTOMLFilesAreRead(t *testing.T) {
	folder := t.TempDir()
	target := put(t, filepath.Join(t.TempDir(), "elsewhere"), "name = 'linked'")
	put(t, serviceFile(folder, ".hidden.toml"), "name = 'hidden'")
	put(t, serviceFile(folder, "a.toml~"), "name = 'a'")
	put(t, serviceFile(folder, "a.conf"), "name = 'a'")
	put(t, serviceFile(folder, "folder.toml/a.toml"), "name = 'a'")
	put(t, serviceFile(folder, "large.toml"), "name = 'large'\n#"+strings.Repeat(".", 64<<10))
	put(t, serviceFile(folder, "largest.toml"), "name = 'b'\n#"+strings.Repeat(".", 64<<10-len("name = 'b'\n#")))
	path := func(name string) string { return serviceFile(folder, name) }
	for name, to := range map[string]string{
		"link.toml": target, "dangling.toml": filepath.Join(folder, "missing"), "loop.toml": "loop.toml", "zero.toml": "/dev/zero", "tty.toml": "/dev/ptmx",
	} {
		if err := os.Symlink(to, path(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(path("fifo.toml"), 0o600); err != nil {
		t.Fatal(err)
	}
	load(t, []string{folder}, []string{"b", "linked"},
		path("dangling.toml")+": cannot be read: stat: no such file or directory",
		path("fifo.toml")+": is no regular file",
		path("folder.toml")+": is no regular file",
		path("large.toml")+": is larger than 64 KiB",
		path("loop.toml")+": cannot be read: stat: too many levels of symbolic links",
		path("tty.toml")+": is no regular file",
		path("zero.toml")+": is no regular file",
	)
	if _, problems := servicefile.Read(path("none.toml")); len(problems) != 1 || problems[0].Line != 0 || problems[0].File != path("none.toml") {
		t.Errorf("no file: %v", texts(problems))
	}
	for _, name := range []string{"empty.toml", "null.toml"} {
		if name == "null.toml" {
			if err := os.Symlink(os.DevNull, path(name)); err != nil {
				t.Fatal(err)
			}
		} else {
			put(t, path(name), "")
		}
		if s, problems := servicefile.Read(path(name)); len(problems) != 0 || !reflect.DeepEqual(s, servicefile.Service{}) {
			t.Errorf("%s: %+v, %v", name, s, texts(problems))
		}
	}
}

func TestAServicesFolderIsAFolder(t *testing.T) {
	none, file, fifo := t.TempDir(), put(t, filepath.Join(t.TempDir(), "file"), "x"), t.TempDir()
	put(t, filepath.Join(none, "services.d"), "x")
	if err := syscall.Mkfifo(filepath.Join(fifo, "services.d"), 0o600); err != nil {
		t.Fatal(err)
	}
	good, linked := t.TempDir(), t.TempDir()
	put(t, serviceFile(good, "a.toml"), "name = 'a'")
	if err := os.Symlink(filepath.Join(good, "services.d"), filepath.Join(linked, "services.d")); err != nil {
		t.Fatal(err)
	}
	load(t, []string{none, file, fifo, linked}, []string{"a"},
		filepath.Join(none, "services.d")+": cannot be read: open: not a directory",
		filepath.Join(file, "services.d")+": cannot be read: open: not a directory",
		filepath.Join(fifo, "services.d")+": cannot be read: open: not a directory",
	)
}

func TestWhatOthersMayWriteIsRefused(t *testing.T) {
	folder, under := t.TempDir(), t.TempDir()
	for _, mode := range []os.FileMode{0o400, 0o644, 0o620, 0o602} {
		path := put(t, serviceFile(folder, fmt.Sprintf("%04o.toml", mode)), fmt.Sprintf("name = 's%o'", mode))
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	put(t, serviceFile(under, "0400.toml"), "name = 'under.400'")
	put(t, serviceFile(under, "under.toml"), "name = 'under'")
	load(t, []string{folder, under}, []string{"s400", "s644", "under"},
		serviceFile(folder, "0602.toml")+": may be written by others than its owner (mode 0602): run chmod go-w on it",
		serviceFile(folder, "0620.toml")+": may be written by others than its owner (mode 0620): run chmod go-w on it",
	)
	for _, mode := range []os.FileMode{0o770, 0o707, 0o777 | os.ModeSticky} {
		if err := os.Chmod(filepath.Join(folder, "services.d"), mode); err != nil {
			t.Fatal(err)
		}
		load(t, []string{folder, under}, []string{"under"}, // what it would have masked stays masked
			fmt.Sprintf("%s: may be written by others than its owner (mode %04o): run chmod go-w on it", filepath.Join(folder, "services.d"), mode.Perm()))
	}
}

func TestWhatAnotherUserOwnsIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make what belongs to another user")
	}
	folder := t.TempDir()
	own, other := serviceFile(folder, "own.toml"), serviceFile(folder, "other.toml")
	put(t, own, "name = 'own'")
	put(t, other, "name = 'other'")
	if err := os.Chown(other, 1, 1); err != nil {
		t.Fatal(err)
	}
	load(t, []string{folder}, []string{"own"}, other+": belongs to uid 1: want root's")

	// To another user root's files are as good as its own, and a third one's are not.
	for name, owner := range map[string]int{"own.toml": nobody, "root.toml": 0, "other.toml": 1} {
		path := put(t, serviceFile(folder, name), "name = '"+strings.TrimSuffix(name, ".toml")+"'")
		if err := os.Chown(path, owner, -1); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	secret := put(t, serviceFile(folder, "secret.toml"), "name = 'secret'")
	for path := folder; path != os.TempDir() && len(path) > 1; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), folderVariable+"="+folder, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got loaded
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := loaded{Names: []string{"own", "root"}, Problems: []string{
		other + ": belongs to uid 1: want root's or that of this user, uid 65534",
		secret + ": cannot be read: open: permission denied",
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	services := filepath.Join(folder, "services.d")
	if err := os.Chown(services, 1, 1); err != nil {
		t.Fatal(err)
	}
	load(t, []string{folder}, []string{}, services+": belongs to uid 1: want root's")
}

func TestWhatIsTakenNamesItsOwner(t *testing.T) {
	over, under := t.TempDir(), t.TempDir()
	a := put(t, serviceFile(under, "a.toml"), "name = 'a'\nendpoints = ['x', 'y', 'e']")
	put(t, serviceFile(over, "b.toml"), "name = 'b'\nendpoints = ['broken', 'broken']") // has nothing, as it is broken
	c := put(t, serviceFile(over, "c.toml"), "\nname = 'a'\nendpoints = ['c']")
	d := put(t, serviceFile(over, "d.toml"), "name = 'd'\nendpoints = [\n'd',\n'y',\n'x']")
	e := put(t, serviceFile(over, "e.toml"), "nice = 0\nname = 'e'")
	put(t, serviceFile(over, "f.toml"), "name = 'f'\nendpoints = ['broken', 'c', 'd', 'a']") // what was skipped has nothing
	put(t, serviceFile(over, "g.toml"), "name = 'x'\nendpoints = ['g']")                     // a service may be called as another's endpoint
	h := put(t, serviceFile(over, "h.toml"), "name = 'a'")
	i := put(t, serviceFile(over, "i.toml"), "name = 'i'")
	j := put(t, serviceFile(over, "j.toml"), "name = 'i'") // whose endpoint is taken, too: told once
	load(t, []string{over, under}, []string{"a", "f", "x", "i"},
		serviceFile(over, "b.toml")+":2: endpoints: broken is there twice",
		c+`:2: name: a is the service of "`+a+`"`,
		d+`:4: endpoints: y is an endpoint of service a, of "`+a+`"`,
		d+`:5: endpoints: x is an endpoint of service a, of "`+a+`"`,
		e+`:2: name: e, which is the endpoint where endpoints says no other, is one of service a, of "`+a+`"`,
		h+`:1: name: a is the service of "`+a+`"`,
		h+`:1: name: a, which is the endpoint where endpoints says no other, is one of service f, of "`+serviceFile(over, "f.toml")+`"`,
		j+`:1: name: i is the service of "`+i+`"`,
	)
}

func TestAServiceThatIsBrokenIsSkippedAlone(t *testing.T) {
	folder := t.TempDir()
	want := []string{}
	for i := range 200 {
		name := fmt.Sprintf("service%03d", i)
		text := fmt.Sprintf("name = %q\nprogram = ['/bin/true']\nkeep_alive = 'on_crash'\n", name)
		if i == 77 {
			text += "stop_timeout = '0s'\n"
		} else {
			want = append(want, name)
		}
		put(t, serviceFile(folder, name+".toml"), text)
	}
	load(t, []string{folder}, want,
		serviceFile(folder, "service077.toml")+":4: stop_timeout: must be more than 0: an instance that does not stop must be killed some time")
}

func TestAFileOfABuiltInServicesNameSaysHowItDiffers(t *testing.T) {
	built := servicefile.Service{
		Name: "our.network", Endpoints: []string{"our.network", "our.more"}, Program: []string{"/bin/network", "-x"}, Stderr: servicefile.Inherit, StopTimeout: time.Second,
	}.WithDefaults()
	thief := "name = 'a.thief'\nendpoints = [\n'a.thief',\n'our.more']"
	tests := []struct {
		name, file string

		change  func(*servicefile.Service)
		problem string // of the file
	}{
		{name: "no file", file: "name = 'another'"},
		{name: "a file that says nothing more", file: "name = 'our.network'", change: func(*servicefile.Service) {}},
		{
			name: "what needs a program", file: "name = 'our.network'\nkeep_alive = 'always'\nrun_at_load = true\n[allow]\nopen = ['any']",
			change: func(s *servicefile.Service) {
				s.KeepAlive, s.RunAtLoad = servicefile.Always, true
				s.Allow.Open = servicefile.Rules{rules(t, "any")[0]}
			},
		},
		{
			name: "another program", file: "name = 'our.network'\nprogram = ['/bin/other']\nendpoints = ['our.network']",
			change: func(s *servicefile.Service) {
				s.Program, s.Endpoints = []string{"/bin/other"}, []string{"our.network"}
			},
		},
		{name: "a broken file", file: "name = 'our.network'\nnice = 'x'", problem: ":2: nice: "},
	}
	for _, test := range tests {
		folder := t.TempDir()
		sub := filepath.Join(folder, "services.d")
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(sub, "a.toml"), thief)
		path := put(t, filepath.Join(sub, "n.toml"), test.file)
		want := built
		if test.change != nil {
			want.File = path
			test.change(&want)
		}
		services, problems := servicefile.LoadWith([]servicefile.Service{built}, folder)
		i := slices.IndexFunc(services, func(s servicefile.Service) bool { return s.Name == built.Name })
		if i < 0 || !reflect.DeepEqual(services[i], want) {
			t.Errorf("%s: %+v, want %+v", test.name, services, want)
		}
		got := texts(problems)
		if len(got) == 0 || got[0] != filepath.Join(sub, "a.toml")+":4: endpoints: our.more is an endpoint of service our.network, of the broker itself" {
			t.Errorf("%s: the thief's problem is in %q", test.name, got)
		}
		if more := len(got) - 1; test.problem == "" && more != 0 || test.problem != "" && (more != 1 || !strings.HasPrefix(got[1], path+test.problem)) {
			t.Errorf("%s: problems %q", test.name, got)
		}
	}
}
