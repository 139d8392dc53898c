package netns_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/netns"
)

func TestANamespaceIsFoundByItsNumber(t *testing.T) {
	needsRoot(t)
	file, end := namespace(t)
	number, err := netns.Number(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := netns.Identify(file)
	if err != nil {
		t.Fatal(err)
	}
	unique := netns.Unique(file)
	found := func(how string) {
		t.Helper()
		got := netns.Find(number)
		if got == nil {
			t.Fatalf("%s: it is not found", how)
		}
		defer got.Close()
		if id, err := netns.Identify(got); id != want || err != nil || netns.Unique(got) != unique {
			t.Errorf("%s: found is %v, %v, and %d, want %v and %d", how, id, err, netns.Unique(got), want, unique)
		}
	}
	found("by its process")
	pin := filepath.Join(t.TempDir(), "a pin\\")
	if err := os.WriteFile(pin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file.Name(), pin, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("a namespace cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(pin, unix.MNT_DETACH) })
	file.Close()
	end()
	found("by its mount")
	if err := unix.Unmount(pin, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if got := netns.Find(number); got != nil {
		got.Close()
		t.Error("it is found when it is gone")
	}
	if other, _ := namespace(t); unique != 0 && netns.Unique(other) == unique {
		t.Errorf("another one has its unique number %d", unique)
	}
}
