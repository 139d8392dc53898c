package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// frailServices are the tests' services whose instances crash.
var frailServices = []string{"com.example.frail0", "com.example.frail1", "com.example.frail2"}

// playFrail serves an endpoint, of which its arguments are the name and a file, until it crashes at a time of its own, now and then before it has registered.
// If another instance of the service lives it says so in the file.
func playFrail(args []string) error {
	f, err := os.OpenFile(args[1], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		fmt.Fprintf(f, "process %d finds another instance: %v\n", os.Getpid(), err)
		return err
	}
	if rand.IntN(20) == 0 {
		return errors.New("a crash before it has registered")
	}
	time.AfterFunc(300*time.Millisecond+rand.N(4*time.Second), func() { os.Exit(1) })
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, r text) (text, error) { return r, nil })
	return services.Server{Endpoints: map[string]*services.Mux{args[0]: mux}}.Serve(context.Background())
}

// A tally is what became of what a crowd has done.
type tally struct {
	Opened, Answered int64
	Refused          map[wire.Code]int64  // opens, by their codes
	Cut              map[wire.Code]int64  // calls, likewise
	Says             map[wire.Code]string // the last text of each code
}

// openTime is what a crowd gives an open, and its calls.
const openTime = 30 * time.Second

// A crowd is clients that open sessions, call and close them without a pause.
type crowd struct {
	ctx    context.Context
	opened atomic.Int64
	going  sync.WaitGroup

	mu sync.Mutex
	tally
}

// playCrowd is a crowd of so many clients as its argument says. It answers a line with a line when each of them could have opened another session, and when its
// standard input ends it prints its tally.
func playCrowd(args []string) error {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &crowd{ctx: ctx, tally: tally{Refused: map[wire.Code]int64{}, Cut: map[wire.Code]int64{}, Says: map[wire.Code]string{}}}
	for range size {
		c.going.Go(c.client)
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for enough := c.opened.Load() + int64(2*size); c.opened.Load() < enough; {
			time.Sleep(time.Millisecond)
		}
		fmt.Println(in.Text())
	}
	cancel()
	c.going.Wait()
	return json.NewEncoder(os.Stdout).Encode(c.tally)
}

func (c *crowd) client() {
	for c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), openTime) // the last one is waited for
		s, err := client.Dial(ctx, frailServices[rand.IntN(len(frailServices))], client.Options{})
		c.count(&c.Opened, c.Refused, err)
		if err == nil {
			c.opened.Add(1)
			words := text{strconv.Itoa(rand.Int())}
			reply, err := client.Call[text](ctx, s, "echo", words)
			if err == nil && reply != words {
				err = fmt.Errorf("the echo of %v is %v", words, reply)
			}
			c.count(&c.Answered, c.Cut, err)
			s.Close()
		}
		cancel()
	}
}

func (c *crowd) count(good *int64, bad map[wire.Code]int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		*good++
		return
	}
	code := wire.CodeOf(err)
	bad[code]++
	c.Says[code] = err.Error()
}

// serveFiles starts brokerd with service files.
func (w *world) serveFiles(config string) {
	w.t.Helper()
	w.broker = w.start(exec.Command(w.brokerd, "serve", "--socket", w.socket, "--config-dir", config))
	w.broker.stderr.await(w.t, "broker started")
}

// frailFiles writes the service files of the frail services, and returns the folder of the configuration, and of what the instances say.
func (w *world) frailFiles() (config string) {
	w.t.Helper()
	config = filepath.Join(w.dir, "config")
	folder := filepath.Join(config, "services.d")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		w.t.Fatal(err)
	}
	for i, name := range frailServices {
		said := filepath.Join(w.dir, name)
		program := []string{"/usr/bin/env", roleVariable + "=frail", "GORACE=atexit_sleep_ms=0 log_path=" + filepath.Join(w.dir, "race"), self(), name, said}
		how := []string{`idle_exit = "20ms"`, `keep_alive = "always"`, `keep_alive = "on_failure"`}[i]
		file := fmt.Sprintf("name = %q\nprogram = [%s]\nthrottle_interval = \"1ms\"\n%s\n", name, quoted(program), how)
		if err := os.WriteFile(filepath.Join(folder, name+".toml"), []byte(file), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	return config
}

func quoted(words []string) string {
	var list []string
	for _, word := range words {
		list = append(list, strconv.Quote(word))
	}
	return strings.Join(list, ", ")
}

// frail returns the instances of the frail services that live.
func (w *world) frail() []stage.Process {
	return slices.DeleteFunc(stage.Named(w.dir), func(s stage.Process) bool { return len(s.Args) != 3 || !slices.Contains(frailServices, s.Args[1]) })
}

// reset lifts the suspensions that so many failures bring.
func (w *world) reset(services ...string) {
	w.t.Helper()
	s, err := client.Dial(within(w.t, patience), broker.Endpoint, client.Options{Socket: w.socket})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	for _, name := range services {
		if err := s.Call(within(w.t, patience), broker.MethodReset, broker.ServiceRequest{Name: name}, nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

// goOn checks that all clients of the crowds can open sessions.
func goOn(t *testing.T, crowds []*process) {
	t.Helper()
	for _, c := range crowds {
		c.say(t, "on")
	}
	for _, c := range crowds {
		c.stdout.next(t)
	}
}

func TestNothingIsLostThatTheBrokersDeathsAndTheInstancesCrashesCannotExplain(t *testing.T) {
	kills, clients := count(5, 20), count(2, 5)
	w := newWorld(t)
	config := w.frailFiles()
	w.serveFiles(config)
	var crowds []*process
	for range count(5, 10) { // several processes, for one whose opens are first whenever a service crashes is refused
		crowds = append(crowds, w.role("crowd", strconv.Itoa(clients)))
	}
	goOn(t, crowds)
	crashed := 0
	for range kills {
		for range 1 + rand.IntN(3) {
			time.Sleep(rand.N(400 * time.Millisecond)) // any moment will do
			for _, p := range watch(t, w.frail()) {
				if rand.IntN(len(frailServices)) == 0 {
					p.kill()
					crashed++
				}
			}
		}
		w.broker.kill()
		w.serveFiles(config)
		w.reset(frailServices[:]...)
		goOn(t, crowds)
	}
	var sum tally
	refused, cut, says := map[wire.Code]int64{}, map[wire.Code]int64{}, map[wire.Code]string{}
	for _, c := range crowds {
		c.stdin.Close()
		if code := c.exit(t); code != 0 {
			t.Errorf("a crowd exits %d: %v", code, c.stderr)
		}
		var one tally
		lines := strings.Split(c.stdout.whole(t), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &one); err != nil {
			t.Fatalf("the last of what a crowd says, %q: %v", lines, err)
		}
		sum.Opened, sum.Answered = sum.Opened+one.Opened, sum.Answered+one.Answered
		add(refused, one.Refused)
		add(cut, one.Cut)
		maps.Copy(says, one.Says)
	}
	t.Logf("%d opens and %d answered calls; refused opens: %v; calls that were cut: %v; %d instances killed", sum.Opened, sum.Answered, refused, cut, crashed)
	explained(t, "open", sum.Opened, refused, says, wire.StartFailed, wire.Suspended, wire.Refused)
	explained(t, "call", sum.Answered, cut, says, wire.Interrupted, wire.Terminating)
	if crashed == 0 {
		t.Error("no instance was killed")
	}
	for _, name := range frailServices {
		if said, err := os.ReadFile(filepath.Join(w.dir, name)); err != nil || len(said) > 0 {
			t.Errorf("%s: %s %v", name, said, err)
		}
	}
	w.broker.cmd.Process.Signal(syscall.SIGTERM)
	if code := w.broker.exit(t); code != 0 {
		t.Errorf("the last broker exits %d", code)
	}
	if left := stage.Named(w.dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func add(sum, one map[wire.Code]int64) {
	for code, n := range one {
		sum[code] += n
	}
}

// explained checks that what has failed has a code that crashes explain, and is little beside what has not.
func explained(t *testing.T, what string, good int64, bad map[wire.Code]int64, says map[wire.Code]string, by ...wire.Code) {
	t.Helper()
	var all int64
	for code, n := range bad {
		all += n
		if !slices.Contains(by, code) {
			t.Errorf("%d times, %s failed with %s: %s", n, what, code, says[code])
		}
	}
	if all > good/4 {
		t.Errorf("%d times, %s failed, and only %d times not: %v, %v", all, what, good, bad, says)
	}
}
