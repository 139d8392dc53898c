package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// playHorde starts so many hostile processes as its argument says, in a session of their own, and ends with them when its input ends. It tells when all have begun.
func playHorde(args []string) error {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if len(args) == 1 { // the scheduler's groups are sessions, see sched(7); a session's leader is another process than a group's
		return follow(exec.Command("/proc/self/exe", args[0], "leads"), &syscall.SysProcAttr{Setsid: true})
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

// follow runs a command with what this process has, to its end.
func follow(cmd *exec.Cmd, as *syscall.SysProcAttr) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, as
	return cmd.Run()
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

// Weather is what a client that behaves well has met.
type weather struct {
	Opens      int
	Took       time.Duration
	Open, Call time.Duration // p99
	Errors     []string
}

// playGood opens sessions, calls and closes them for a time, and prints how long that took.
func playGood(args []string) error {
	lasts, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	var m weather
	var opens, calls []time.Duration
	begun := time.Now()
	for ; time.Since(begun) < lasts; time.Sleep(time.Millisecond) {
		open, call, err := openAndCall()
		if err != nil {
			m.Errors = append(m.Errors, err.Error())
			continue
		}
		opens, calls = append(opens, open), append(calls, call)
	}
	m.Took = time.Since(begun)
	if m.Opens = len(opens); m.Opens > 0 {
		m.Open, m.Call = p99(opens), p99(calls)
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

// rate is opens a second.
func (m weather) rate() float64 { return float64(m.Opens) / m.Took.Seconds() }

func openAndCall() (open, call time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	s, err := client.Dial(ctx, echoEndpoint, client.Options{})
	open = time.Since(begun)
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	begun = time.Now()
	reply, err := client.Call[text](ctx, s, "echo", text{"x"})
	call = time.Since(begun)
	if err == nil && reply.Text != "x" {
		err = errors.New("the echo of x is " + reply.Text)
	}
	return open, call, err
}

func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)*99/100]
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

// The guards are the quotas of each user, and that admit refuses before anything is done for a connection: without, the broker has no time for the good client. What it has is a share of the
// machine's time, as a session of its own; by that, and by the queue of connections, which all wait in alike, it is slower.
func TestAGoodClientIsServedBesideHostileProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	const (
		hostile = 64
		least   = 60       // opens, of which one must be left: the processes share the machine's few cores
		grows   = 16 << 10 // KiB, of which the garbage collector gives back what it does not use in its own time
	)
	w := newWorld(t, one)
	w.serveEcho(0, "")
	quietly, beside := 2*time.Second, 4*time.Second
	if *long {
		quietly, beside = 10*time.Second, 60*time.Second
	}
	good := func(lasts time.Duration) weather {
		t.Helper()
		p := w.as(goodUID, "good", lasts.String())
		select {
		case <-p.done:
		case <-time.After(lasts + patience):
			t.Fatal("the good client does not come to its end")
		}
		return decodeLine[weather](t, p)
	}
	good(quietly / 2) // what is opened once is open
	quiet := good(quietly)
	files, memory := filesOf(t, w.broker.pid()), memoryOf(t, w.broker.pid())
	horde := w.as(hostileUID, "horde", strconv.Itoa(hostile))
	horde.stdout.await(t, "begins")
	met := good(beside)
	horde.say(t, "enough")
	horde.stdin.Close()
	horde.exit(t)
	for _, m := range []weather{quiet, met} {
		if len(m.Errors) > 0 || m.Opens == 0 {
			t.Errorf("the good client has opened %d sessions, and met %d errors: %q", m.Opens, len(m.Errors), m.Errors[:min(3, len(m.Errors))])
		}
	}
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	slower := met.rate() / quiet.rate()
	t.Logf("p99 of an open: %v, quiet %v, %.1f times; of a call: %v, quiet %v, %.1f times; opens a second: %.0f, quiet %.0f",
		met.Open, quiet.Open, ratio(met.Open, quiet.Open), met.Call, quiet.Call, ratio(met.Call, quiet.Call), met.rate(), quiet.rate())
	if slower < 1.0/least { // without quotas it is one of 150 and less
		t.Errorf("the good client opens %.1f sessions a second, and %.1f when it is alone: want one of %d at least", met.rate(), quiet.rate(), least)
	}
	eventually(t, "the broker's descriptors are free", func() bool { return filesOf(t, w.broker.pid()) <= files })
	after := memoryOf(t, w.broker.pid())
	t.Logf("the broker's memory: %d KiB before, %d KiB after", memory, after)
	if after > memory+grows && !stage.RaceEnabled { // which counts the memory of the race detector, too
		t.Errorf("the broker has %d KiB, and had %d", after, memory)
	}
	status := ctlJSON[broker.Status](w, "status", "status")
	t.Logf("%d refusals", status.OverQuota)
	if status.OverQuota == 0 {
		t.Error("nothing was refused for a limit")
	}
}
