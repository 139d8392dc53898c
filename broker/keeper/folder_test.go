package keeper_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

func TestOutputGoesThroughNoFolderThatOthersCouldHaveChanged(t *testing.T) {
	asRoot(t)
	const nobody = 65534
	for _, tt := range []struct {
		name   string
		change func(folder string) error
		want   keeper.StartError // of the folder; an empty step: none
	}{
		{"it is root's", func(string) error { return nil }, keeper.StartError{}},
		{"it is sticky, as /tmp", func(folder string) error { return os.Chmod(folder, 0o777|os.ModeSticky) }, keeper.StartError{}},
		{"it is another's", func(folder string) error { return os.Chown(folder, nobody, nobody) }, keeper.StartError{Step: "uid 65534's", Errno: unix.EPERM}},
		{"others may write it", func(folder string) error { return os.Chmod(folder, 0o777) }, keeper.StartError{Step: "others may write", Errno: unix.EPERM}},
		{"it is a link", func(folder string) error {
			return errors.Join(os.Rename(folder, folder+".real"), os.Symlink(folder+".real", folder))
		}, keeper.StartError{Step: "the link", Errno: unix.ELOOP}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leavesNothing(t)
			folder := filepath.Join(t.TempDir(), "folder")
			below := filepath.Join(folder, "below")
			if err := errors.Join(os.MkdirAll(below, 0o755), tt.change(folder)); err != nil {
				t.Fatal(err)
			}
			for _, in := range []string{below, folder} {
				c := shell(t, "echo one; echo two >&2")
				c.Stdout.Path, c.Stderr.Path = filepath.Join(in, "out"), filepath.Join(in, "out")
				if tt.want.Step == "" {
					outcome(t, start(t, c))
					if got := text(c.Stdout.Path); got != "one\ntwo\n" && got != "two\none\n" {
						t.Errorf("the output is %q", got)
					}
					continue
				}
				_, err := keeper.Start(t.Context(), c)
				e, _ := errors.AsType[*keeper.StartError](err)
				if e == nil || !strings.Contains(e.Step, tt.want.Step) || e.Path != folder || e.Errno != tt.want.Errno {
					t.Errorf("the start says %v, want %q, %s and %v", err, tt.want.Step, folder, tt.want.Errno)
				}
				if _, err := os.Stat(c.Stdout.Path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the file is there: %v", err)
				}
			}
		})
	}
}

func TestAFolderThatIsChangedLaterGetsNoMoreOutput(t *testing.T) {
	leavesNothing(t)
	folder, mark := filepath.Join(t.TempDir(), "folder"), filepath.Join(t.TempDir(), "mark")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	c := shell(t, "echo one >&2; while [ ! -e "+mark+" ]; do sleep 0.01; done; echo two >&2; echo done")
	c.Stderr.Path = filepath.Join(folder, "err")
	k := start(t, c)
	until(t, "the output is there", func() bool { return text(c.Stderr.Path) == "one\n" })
	if err := errors.Join(os.Remove(c.Stderr.Path), os.Chmod(folder, 0o777), os.WriteFile(mark, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	outcome(t, k)
	says(t, c, "done")
	if got := text(c.Stderr.Path); got != "" {
		t.Errorf("the output is %q", got)
	}
}

// guard: O_NOFOLLOW in sink.begin.
func TestOutputGoesThroughNoLink(t *testing.T) {
	leavesNothing(t)
	folder := t.TempDir()
	precious, link := filepath.Join(folder, "precious"), filepath.Join(folder, "out")
	if err := errors.Join(os.WriteFile(precious, []byte("precious"), 0o600), os.Symlink(precious, link)); err != nil {
		t.Fatal(err)
	}
	c := shell(t, "echo one")
	c.Stdout.Path = link
	outcome(t, start(t, c))
	if got := text(precious); got != "precious" {
		t.Errorf("the file that it leads to is %q", got)
	}
}
