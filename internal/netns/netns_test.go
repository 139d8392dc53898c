package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/netns"
)

// patience is how long an event may take.
const patience = 20 * time.Second

// needsRoot skips a test for what only root can do.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces, and numbers them")
	}
}

// namespace returns a network namespace that a process of its own is in, and what ends that.
func namespace(t *testing.T) (file *os.File, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { cmd.Process.Kill(); cmd.Wait() }
	t.Cleanup(end)
	return open(t, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)), end
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func TestOnlyANetworkNamespaceIsOne(t *testing.T) {
	id, err := netns.Identify(open(t, "/proc/self/ns/net"))
	own, ownErr := netns.OfProcess(os.Getpid())
	if err != nil || ownErr != nil || id != own || id.Inode == 0 {
		t.Errorf("this process's is %v, %v, and %v, %v", id, err, own, ownErr)
	}
	for _, path := range []string{"/proc/self/ns/mnt", "/proc/self/ns/user", "/proc/self", "/dev/null"} {
		if id, err := netns.Identify(open(t, path)); !errors.Is(err, netns.ErrNot) {
			t.Errorf("%s is %v, %v", path, id, err)
		}
	}
}

func TestTheEndOfANumberedNamespaceIsTold(t *testing.T) {
	needsRoot(t)
	news, err := netns.Listen()
	if err != nil {
		t.Fatal(err)
	}
	told, over := make(chan int32, 1000), make(chan error, 1)
	go func() {
		for {
			gone, err := news.Next()
			if err != nil {
				over <- err
				return
			}
			for _, number := range gone {
				told <- number
			}
		}
	}()
	file, end := namespace(t)
	number, err := netns.Number(file)
	if err != nil {
		t.Fatal(err)
	}
	if number < netns.FirstOwn {
		t.Errorf("its number is %d, which the kernel may give to another", number)
	}
	if again, err := netns.Number(file); again != number || err != nil {
		t.Errorf("asked again it is %d, %v, want %d", again, err, number)
	}
	if exists, err := netns.Exists(number); !exists || err != nil {
		t.Errorf("it exists: %v, %v", exists, err)
	}
	if owner, err := netns.Owner(file); owner != 0 || err != nil {
		t.Errorf("it is of uid %d, %v", owner, err)
	}
	file.Close()
	begun := time.Now()
	end()
	for deadline := time.After(patience); ; {
		select {
		case gone := <-told:
			if gone != number {
				continue // of somebody else's
			}
			t.Logf("told %v after the last process was killed", time.Since(begun))
		case <-deadline:
			t.Fatalf("not told within %v", patience)
		}
		break
	}
	if exists, err := netns.Exists(number); exists || err != nil {
		t.Errorf("when it is gone it exists: %v, %v", exists, err)
	}
	news.Close()
	if err := <-over; !errors.Is(err, os.ErrClosed) {
		t.Errorf("when it is closed it says %v", err)
	}
}
