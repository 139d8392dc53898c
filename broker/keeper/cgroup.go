package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A cgroup is the folder of a cgroup of version 2, see cgroups(7).
type cgroup string

// write writes to a file of the cgroup.
func (g cgroup) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(string(g), file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// make makes the cgroup.
func (g cgroup) make() error { return os.Mkdir(string(g), 0o755) }

// join moves this process into the cgroup.
func (g cgroup) join() error { return g.write("cgroup.procs", "0") }

// kill sends SIGKILL to all processes of the cgroup and those below it, and to what they fork meanwhile.
func (g cgroup) kill() error { return g.write("cgroup.kill", "1") }

// populated reports whether the cgroup, or one below it, has a process that has not exited. What is not there has none.
func (g cgroup) populated() bool {
	if g == "" {
		return false
	}
	text, err := os.ReadFile(filepath.Join(string(g), "cgroup.events"))
	return err == nil && strings.Contains(string(text), "populated 1")
}

// remove removes the cgroup and those that its processes have made below it. They must have no processes.
func (g cgroup) remove() error {
	entries, err := os.ReadDir(string(g))
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, (g + "/" + cgroup(e.Name())).remove())
		}
	}
	if err := errors.Join(err, unix.Rmdir(string(g))); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// clear kills all that is in the cgroup, and removes it. It returns false if done was closed before that came to its end.
func (g cgroup) clear(done <-chan struct{}) bool {
	empty := until(done, func() bool {
		if !g.populated() {
			return true
		}
		_ = g.kill() // without it there is only waiting
		return false
	})
	if empty {
		g.vanish()
	}
	return empty
}

// vanish removes the cgroup, which is empty. The kernel may be busy with it still; one that stays for another reason is no process.
func (g cgroup) vanish() {
	until(after(giveUp), func() bool { return g.remove() == nil })
}

// Cgroups returns the folder below which this process may make cgroups: that of its own cgroup. It fails where there are none of version 2 with
// a cgroup.kill (Linux 5.14), or this process may not make any or move its children there.
func Cgroups() (string, error) {
	own, err := ownCgroup()
	if err != nil {
		return "", fmt.Errorf("find this process's cgroup: %w", err)
	}
	if err := unix.Access(filepath.Join(own, "cgroup.procs"), unix.W_OK); err != nil {
		return "", fmt.Errorf("use the cgroup %s: write to its cgroup.procs: %w", own, err)
	}
	clearTrials(own)
	trial, err := os.MkdirTemp(own, trials+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", fmt.Errorf("use the cgroup %s: %w", own, err)
	}
	_, err = os.Stat(filepath.Join(trial, "cgroup.kill")) // the first cgroup of all has none itself
	if err := errors.Join(err, unix.Rmdir(trial)); err != nil {
		return "", fmt.Errorf("use the cgroup %s: %w", own, err)
	}
	return own, nil
}

const (
	// trials begins the names of the cgroups that Cgroups tries to make.
	trials = "fairlead-trial-"
	// trialLeft is how old one is at least that a killed process has left.
	trialLeft = time.Minute
)

// clearTrials removes what those have left who were killed in Cgroups.
func clearTrials(own string) {
	left, _ := filepath.Glob(filepath.Join(own, trials+"*"))
	for _, folder := range left {
		if info, err := os.Stat(folder); err == nil && time.Since(info.ModTime()) > trialLeft {
			_ = unix.Rmdir(folder)
		}
	}
}

// ownCgroup returns the folder of this process's cgroup.
func ownCgroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path := ""
	for line := range strings.Lines(string(text)) {
		if p, found := strings.CutPrefix(line, "0::"); found {
			path = strings.TrimSuffix(p, "\n")
		}
	}
	if path == "" {
		return "", errors.New("it has none of version 2")
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if folder, ok := folderOf(lines.Text(), path); ok {
			return folder, nil
		}
	}
	return "", fmt.Errorf("no cgroup2 file system that has %s is mounted", path)
}

// folderOf returns where a cgroup is by a line of mountinfo, see proc_pid_mountinfo(5), if that is the mount of a cgroup2 file system
// that has it. One outside this process's cgroup namespace begins with "/..", and is nowhere.
func folderOf(line, path string) (string, bool) {
	fields, rest, found := strings.Cut(line, " - ")
	f := strings.Fields(fields)
	if !found || path != filepath.Clean(path) || !strings.HasPrefix(rest, "cgroup2 ") || len(f) < 5 {
		return "", false
	}
	below, err := filepath.Rel(unescape.Replace(f[3]), path)
	if err != nil || !filepath.IsLocal(below) {
		return "", false
	}
	return filepath.Join(unescape.Replace(f[4]), below), true
}

// unescape undoes what the kernel does to paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
