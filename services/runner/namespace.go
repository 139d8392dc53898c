package runner

import (
	"os"

	"golang.org/x/sys/unix"
)

// setUpNamespaces makes the init of a pid namespace ready. On failure it says at which step.
// It must run on the thread that will fork the command.
func (m mode) setUpNamespaces() (step string, err error) {
	nameProcess()
	// The kernel kills the init when the thread that forked it ends. Should that be over
	// already, the end of file of the connection tells.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return "ask for a death signal", err
	}
	if err := unix.Mount("none", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return "keep mounts from leaving the container", err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "mount the container's /proc", err
	}
	if m.User {
		if err := dropCapabilities(); err != nil {
			return "drop the init's capabilities", err
		}
	}
	return "", nil
}

// dropCapabilities takes from this thread, and so from the command, what the user namespace
// gave the init. The init is then not dumpable: the command has its uid and must not trace it.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// nameProcess makes ps show what this process is; nothing depends on it.
func nameProcess() {
	_ = os.WriteFile("/proc/self/comm", []byte(initName), 0)
}
