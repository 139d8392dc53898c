package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// The attacks of a hostile process on the broker's door, each without an end.
var knocks = []struct {
	name string
	do   func(at string)
}{
	{"connects and closes", func(at string) {
		if conn := knock(at); conn != nil {
			conn.Close()
		}
	}},
	{"says half a frame, and stays", func(at string) { crowdOf(at, 40, firstFrame()[:7]) }},
	{"says nothing, and stays", func(at string) { crowdOf(at, 40, nil) }},
	{"says a byte a second", drip},
	{"opens and never reads", func(at string) { crowdOf(at, 40, firstFrame()) }},
	{"opens and closes at every point", closeAnywhere},
	{"sends descriptors by the hundred", sendDescriptors},
	{"opens and closes in order", func(string) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if s, err := client.Dial(ctx, echoEndpoint, client.Options{NoWait: true}); err == nil {
			s.Close()
		}
	}},
	{"pings", flood("pings")},
	{"streams", flood("streams")},
	{"giant lengths", flood("giant lengths")},
	{"closes at every point of a session", flood("closes")},
}

// flood is an attack on a session with the echo service, if the broker lets it have one.
func flood(name string) func(at string) {
	return func(string) {
		if h, err := openHostile(echoEndpoint); err == nil {
			h.conn.SetReadDeadline(time.Now().Add(patience))
			floods[name](h, rand.IntN(1<<16))
			h.conn.Close()
		}
	}
}

// silent is the attack that says nothing, and stays.
const silent = 2

// knock connects to the broker, and returns nil where its queue is full.
func knock(at string) *net.UnixConn {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil
	}
	return conn
}

// firstFrame is an open of the echo service.
func firstFrame() []byte {
	f, err := wire.NewFrame(wire.KindOpen, 0, wire.Open{Endpoint: echoEndpoint, Features: session.Offer(), Limits: wire.DefaultLimits, Title: "hostile"})
	if err != nil {
		panic(err) // it is right
	}
	return f.Append(nil)
}

// crowdOf makes connections that all say the same, and keeps them until the broker has closed the last one, or for a second.
func crowdOf(at string, n int, words []byte) {
	var all []*net.UnixConn
	for range n {
		if conn := knock(at); conn != nil {
			conn.Write(words)
			all = append(all, conn)
		}
	}
	time.Sleep(time.Second) // so the broker has something to keep
	for _, conn := range all {
		conn.Close()
	}
}

// drip says a first frame a byte a second, on many connections, for longer than a broker waits.
func drip(at string) {
	var all []*net.UnixConn
	for range 40 {
		if conn := knock(at); conn != nil {
			all = append(all, conn)
		}
	}
	for _, b := range firstFrame()[:8] {
		for _, conn := range all {
			conn.Write([]byte{b})
		}
		time.Sleep(time.Second)
	}
	for _, conn := range all {
		conn.Close()
	}
}

// closeAnywhere closes a connection somewhere between its first byte and the first answer.
func closeAnywhere(at string) {
	conn := knock(at)
	if conn == nil {
		return
	}
	defer conn.Close()
	words := firstFrame()
	if n := rand.IntN(2 * len(words)); n < len(words) {
		conn.Write(words[:n])
		return
	}
	conn.Write(words)
	conn.SetDeadline(time.Now().Add(time.Second))
	for range rand.IntN(3) {
		_, files, err := socket.ReadFrame(conn)
		socket.Discard(files)
		if err != nil {
			return
		}
	}
}

// sendDescriptors sends as many descriptors with a byte as a message takes, again and again: SCM_RIGHTS of unix(7).
func sendDescriptors(at string) {
	conn := knock(at)
	if conn == nil {
		return
	}
	defer conn.Close()
	const most = 253
	rights := unix.UnixRights(slices.Repeat([]int{0}, most)...)
	conn.SetDeadline(time.Now().Add(time.Second))
	for _, b := range firstFrame() {
		if _, _, err := conn.WriteMsgUnix([]byte{b}, rights, nil); err != nil {
			return
		}
	}
}

// playHorde starts so many hostile processes as its argument says, in its own session, and ends with them when its input ends. It tells when all have begun.
func playHorde(args []string) error {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var all []*exec.Cmd
	for n := range size {
		cmd := exec.Command("/proc/self/exe", strconv.Itoa(n))
		cmd.Env = append(os.Environ(), roleVariable+"=hostile")
		cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		all = append(all, cmd)
	}
	fmt.Println("begins")
	for _, cmd := range all {
		cmd.Wait()
	}
	return nil
}

// playHostile attacks the broker until its input ends, in the way that its argument says.
func playHostile(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	go func() {
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	at, err := socket.Path("")
	if err != nil {
		return err
	}
	for {
		knocks[n%len(knocks)].do(at)
	}
}

// memoryOf is what a process has of memory, in KiB: VmRSS of proc_pid_status(5).
func memoryOf(t *testing.T, pid int) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// declareCalm declares the service of calmEndpoint, for everybody.
func (w *world) declareCalm() {
	w.t.Helper()
	file := fmt.Sprintf("name = %q\nprogram = [\"/usr/bin/env\", %q, %q, %q]\nstop_timeout = \"2s\"\n[allow]\nopen = [\"any\"]\n", calmEndpoint, roleVariable+"=server", self(), calmEndpoint)
	if err := os.WriteFile(filepath.Join(w.config(), "services.d", "calm.toml"), []byte(file), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// startPlain starts the plain server, as a user of its own, and returns its path, at which everybody may connect.
func (w *world) startPlain() (path string) {
	w.t.Helper()
	folder, err := os.MkdirTemp("", "e2e-")
	if err := errors.Join(err, os.Chown(folder, plainUID, plainUID), os.Chmod(folder, 0o755)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { os.RemoveAll(folder) })
	path = filepath.Join(folder, "s")
	w.as(plainUID, "plain", path).stdout.await(w.t, "ready")
	if err := os.Chmod(path, 0o666); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// sessionOf is the group that the scheduler gives a share of the processors' time, where it makes one of each session: sched(7).
func sessionOf(t *testing.T, pid int) string {
	t.Helper()
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", pid))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(group))
}

// The guards are the quotas of each user, the sockets of users' own, the brakes of refusals and of pings, and that admit refuses before anything is done for a connection.
//
// The hostile processes are as another user's would be: in sessions that are not the broker's and not the good client's. Which user has how much of the processors is the kernel's to say, by
// the groups that it makes of sessions, or systemd of users and services; that the broker costs no more for being attacked is ours.
func TestAGoodClientIsServedBesideHostileProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	const (
		hostile = 64
		slower  = 100        // times, at most, beyond what the plain server is: the processes share the machine's few cores
		grows   = 16 << 10   // KiB, of which the garbage collector gives back what it does not use in its own time
		leaves  = 12 * keeps // bytes: some tenth of the most it had, 500 MB, which the Go runtime keeps of the goroutines and connections there were
	)
	w := newWorld(t, one)
	w.declareCalm()
	w.serveEcho(0, "")
	plain := w.startPlain()
	quietly, beside := 2*time.Second, 4*time.Second
	if *long {
		quietly, beside = 10*time.Second, 60*time.Second
	}
	good := func(uid uint32, lasts time.Duration) weather {
		t.Helper()
		p := w.as(uid, "good", lasts.String(), plain)
		select {
		case <-p.done:
		case <-time.After(lasts + patience):
			t.Fatal("the good client does not come to its end")
		}
		m := decodeLine[weather](t, p)
		if len(m.Errors) > 0 || m.Opens == 0 {
			t.Errorf("a client that behaves well has opened %d sessions, and met %d errors: %q", m.Opens, len(m.Errors), m.Errors[:min(3, len(m.Errors))])
		}
		return m
	}
	good(goodUID, quietly/2) // what is opened once is open, as is the socket of a user's own
	good(hostileUID, time.Millisecond)
	quiet := good(goodUID, quietly)
	door, instance := &victim{name: "broker", pid: w.broker.pid()}, &victim{name: "instance", pid: w.instanceOf(echoEndpoint)}
	asking := w.dial(echoEndpoint)
	ask(t, asking)
	had := ask(t, asking)
	door.before(t)
	instance.before(t)
	horde := w.as(hostileUID, "horde", strconv.Itoa(hostile))
	horde.stdout.await(t, "begins")
	if group := sessionOf(t, horde.pid()); group != "" && group == sessionOf(t, w.broker.pid()) {
		t.Errorf("the hostile processes share %s with the broker", group)
	}
	met := good(goodUID, beside)
	door.during(t, met.Took)
	instance.during(t, met.Took)
	horde.say(t, "enough")
	horde.stdin.Close()
	horde.exit(t)
	logWeather(t, quiet, met)
	if most := slower * max(1, ratio(met.Plain.Half, quiet.Plain.Half)); ratio(met.Calm.Half, quiet.Calm.Half) > most {
		t.Errorf("half of the opens of a service that is not attacked take more than %v, and quietly %v: want at most %.0f times", met.Calm.Half, quiet.Calm.Half, most)
	}
	door.after(t, grows)
	var kept cost
	if !soon(func() bool {
		kept = ask(t, asking) // which collects its garbage, so that what is left is what is held
		return kept.Goroutines <= had.Goroutines && kept.Memory <= had.Memory+leaves
	}) {
		t.Errorf("the instance is left with %+v, and had %+v", kept, had)
	}
	t.Logf("what the instance holds: %+v, before %+v", kept, had)
	instance.after(t, leaves>>10)
	status := ctlJSON[broker.Status](w, "status", "status")
	t.Logf("%d refusals", status.OverQuota)
	if status.OverQuota == 0 {
		t.Error("nothing was refused for a limit")
	}
}

// A victim is a process that is attacked, and what it has before.
type victim struct {
	name  string
	pid   int
	files int // descriptors
	kib   int // of memory
	cpu   int // hundredths of a second
}

func (v *victim) before(t *testing.T) {
	t.Helper()
	v.files, v.kib, v.cpu = filesOf(t, v.pid), memoryOf(t, v.pid), cpuOf(t, v.pid)
}

func (v *victim) during(t *testing.T, lasts time.Duration) {
	t.Helper()
	t.Logf("%s beside: %.0f %% of a processor, %d descriptors (before %d), %d KiB (before %d)",
		v.name, float64(cpuOf(t, v.pid)-v.cpu)/lasts.Seconds(), filesOf(t, v.pid), v.files, memoryOf(t, v.pid), v.kib)
}

// after checks that a victim has no more than before.
func (v *victim) after(t *testing.T, grows int) {
	t.Helper()
	eventually(t, "the descriptors of the "+v.name+" are free", func() bool { return filesOf(t, v.pid) <= v.files })
	kib := memoryOf(t, v.pid)
	t.Logf("%s after: %d descriptors (before %d), %d KiB (before %d)", v.name, filesOf(t, v.pid), v.files, kib, v.kib)
	if kib > v.kib+grows && !stage.RaceEnabled { // which counts the memory of the race detector, too
		t.Errorf("the %s has %d KiB, and had %d", v.name, kib, v.kib)
	}
}

// cpuOf is what a process has had of the processors, in hundredths of a second: utime and stime of proc_pid_stat(5), USER_HZ being 100.
func cpuOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return user + system
}

// instanceOf is the process that serves an endpoint of a service of its name.
func (w *world) instanceOf(service string) int {
	w.t.Helper()
	for _, s := range ctlJSON[[]struct {
		Name string
		PID  int
	}](w, "services", "service", "list") {
		if s.Name == service && s.PID > 0 {
			return s.PID
		}
	}
	w.t.Fatalf("no instance of %s", service)
	return 0
}
