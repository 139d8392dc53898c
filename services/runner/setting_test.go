package runner_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/runner"
)

const nobody = 65534

// The other tests run again as an ordinary user, and where the kernel permits no namespaces:
// in a user namespace whose limits are 0.
func TestEverySetting(t *testing.T) {
	if os.Getenv(settingVar) != "" {
		t.Skip("this is one of the settings")
	}
	binary := readableCopy(t)
	ordinary := &syscall.Credential{Uid: nobody, Gid: nobody}
	own := os.Getuid()
	for _, test := range []struct {
		name     string
		attr     *syscall.SysProcAttr
		needRoot bool
	}{
		{"an ordinary user", &syscall.SysProcAttr{Credential: ordinary}, true},
		{"an ordinary user's keeper", limited(nobody, nobody, ordinary), true},
		{"this user's keeper", limited(own, os.Getgid(), nil), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.needRoot && own != 0 {
				t.Skip("only root can become another user")
			}
			t.Parallel()
			cmd := exec.Command(binary, "-test.v="+verbose(), "-test.timeout=60s")
			cmd.Dir = "/"
			cmd.SysProcAttr = test.attr
			cmd.Env = append(os.Environ(), settingVar+"="+test.name)
			if test.attr.Cloneflags != 0 {
				cmd.Env = append(cmd.Env, roleVar+"=limited")
			}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EPERM) {
				t.Skip("the limits need a user namespace:", err)
			}
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			} else if testing.Verbose() {
				t.Logf("%s", out)
			}
		})
	}
}

func verbose() string {
	if testing.Verbose() {
		return "true"
	}
	return "false"
}

// limited are the attributes of a process that may set the limits of its own user namespace.
func limited(uid, gid int, credential *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
		Credential:  credential,
		AmbientCaps: []uintptr{unix.CAP_SYS_RESOURCE},
	}
}

// readableCopy copies the test binary to where every user can execute it.
func readableCopy(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fairlead-runner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "runner.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, data, 0o755), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRequireSaysWhatTheSystemDoesNotPermit(t *testing.T) {
	if !keeper() {
		t.Skip("namespaces are permitted here; TestEverySetting runs this where they are not")
	}
	_, err := runner.Prepare(shell("exit 0"), runner.Options{})
	refusal, ok := errors.AsType[*runner.ContainError](err)
	if !ok || !errors.Is(err, unix.ENOSPC) || runner.ExitStatus(err) != 125 {
		t.Fatalf("error %#v, want a *ContainError of ENOSPC", err)
	}
	if !strings.Contains(refusal.Error(), "user.max_user_namespaces") {
		t.Errorf("%q does not say what to do", refusal)
	}
}

func TestBestSaysWhatIsNotContained(t *testing.T) {
	c, err := runner.Prepare(shell("exit 0"), runner.Options{Contain: runner.Best})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, told := errors.AsType[*runner.ContainError](c.Contained())
	if told != keeper() {
		t.Errorf("Contained says %v", c.Contained())
	}
}
