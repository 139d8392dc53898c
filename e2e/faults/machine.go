package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The services of the workers: one that is started on demand and ends when it is idle, one that is always kept alive, one that is after a failure, and one that
// registers by itself.
const (
	onDemand   = "com.example.demand"
	keptAlive  = "com.example.kept"
	careful    = "com.example.careful"
	byItself   = "com.example.stranger"
	additional = "com.example.additional" // which comes and goes with reloads, and nobody opens
)

// Services are those that callers open.
var Services = []string{onDemand, keptAlive, careful, byItself}

// A Config says what a machine does. Programs must be set.
type Config struct {
	Seed     int64         // of the plan
	Programs string        // the folder of brokerd and broker-run
	First    int           // the number of the first round
	Rounds   int           // at least so many
	Length   time.Duration // of the faults of a round, the later of which do not happen then; 0: all happen
	For      time.Duration // and further ones until so much time is over
	Crowds   int           // client processes
	Callers  int           // clients of each that call
	Lessees  int           // and that lease
	Runtimes int           // containers
	Break    string        // a promise that the machine's own actors break; empty: none
	Quiet    bool          // there are no faults
	Keep     bool          // the folder is kept if something is found, and what brokerd says is more
	Log      func(format string, args ...any)
}

// patience is how long the machine waits for what must come. It measures nothing with it.
const patience = 60 * time.Second

// soon is within what time everybody gets on without a failure when there are no more faults: a service that was asked to stop lets its sessions end for 1 s, reports for 1 s, and is started again.
const soon = 10 * time.Second

// A machine is one run.
type machine struct {
	Config
	place
	ctx      context.Context
	report   *Report
	keeping  sync.WaitGroup // of actors
	ending   atomic.Bool    // nobody is started again
	crowds   []*actor
	runtimes []*actor
	others   []*actor // strangers
	broker   *actor
	serial   atomic.Int64 // of crowds
	base     counts       // before the first fault
	before   []string     // files, likewise
	writing  sync.Mutex   // of the configuration
	reloads  int          // guarded by writing
	looked   sync.Once    // into what does not recover
	log      *os.File     // what brokerd and the network service say
}

// Run runs a machine until its time is over, ctx ends, or something is found. The error is the machine's own.
func Run(ctx context.Context, c Config) (*Report, error) {
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		return nil, err
	}
	m := &machine{Config: c, place: place(dir), ctx: ctx, report: newReport(c)}
	if err := m.build(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	err = m.run()
	m.end()
	m.collect()
	if len(m.report.Findings) > 0 && m.Keep {
		m.Log("kept: %s", dir)
		return m.report, err
	}
	return m.report, errors.Join(err, os.RemoveAll(dir))
}

// build makes the folder.
func (m *machine) build() error {
	err := os.Chmod(string(m.place), 0o755) // other uids come, too
	for _, f := range folders {
		err = errors.Join(err, os.MkdirAll(m.at(f), 0o755))
	}
	err = errors.Join(err, m.writeFiles())
	if err == nil {
		m.log, err = os.OpenFile(m.at("brokerd.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	}
	return err
}

// run is all rounds.
func (m *machine) run() error {
	begun := time.Now()
	if err := m.start(); err != nil {
		return err
	}
	defer func() { m.report.Took = time.Since(begun) }()
	if err := m.rehearse(); err != nil {
		return err
	}
	for n := m.First; m.ctx.Err() == nil && len(m.report.Findings) == 0; n++ {
		if n >= m.First+m.Rounds && time.Since(begun) >= m.For {
			break
		}
		if err := m.round(NewRound(m.Seed, n)); err != nil {
			return err
		}
	}
	return nil
}

// rehearse has everybody work for a moment without a fault, and counts what that leaves open.
func (m *machine) rehearse() error {
	time.Sleep(500 * time.Millisecond)
	return m.quiet(Round{Number: -1, Autopsy: true})
}

// round has the faults of a round happen, and then checks everything in quiet.
func (m *machine) round(r Round) error {
	begun := time.Now()
	m.everybody(goOn)
	if !m.Quiet {
		m.happen(r)
	} else {
		time.Sleep(2 * time.Second)
	}
	faulty := time.Since(begun)
	err := m.quiet(r)
	m.report.Rounds++
	m.Log("round %d: %d faults in %v, quiet %v, %d kills so far", r.Number, len(r.Faults), faulty.Round(10*time.Millisecond), (time.Since(begun) - faulty).Round(10*time.Millisecond), m.report.kills())
	return err
}

// start starts everybody.
func (m *machine) start() error {
	m.broker = m.newActor(brokerd, m.brokerCommand)
	if _, err := m.broker.next(); err != nil {
		return err
	}
	m.others = append(m.others, m.newActor(stranger, m.strangerCommand))
	for range m.Crowds {
		m.crowds = append(m.crowds, m.newActor(crowd, m.crowdCommand))
	}
	for i := range m.Runtimes {
		m.runtimes = append(m.runtimes, m.newActor(runtimes, func() *exec.Cmd { return m.runtimeCommand(i) }))
	}
	return nil
}

// everyActor are all but the broker.
func (m *machine) everyActor() []*actor {
	return append(append(append([]*actor{}, m.crowds...), m.runtimes...), m.others...)
}

// play is a command that plays a role.
func (m *machine) play(role string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		panic(err) // /proc is there, or nothing here works
	}
	cmd := exec.Command(program, args...)
	cmd.Args[0] = role // for who looks for it
	cmd.Env = []string{roleVariable + "=" + role, breakVariable + "=" + m.Break}
	return cmd
}

func (m *machine) brokerCommand() *exec.Cmd {
	cmd := exec.Command(filepath.Join(m.Programs, "brokerd"), "serve", "--socket", m.socket(), "--config-dir", m.at("config"))
	if m.Keep {
		cmd.Args = append(cmd.Args, "--log-level", "debug")
	}
	cmd.Env = []string{"GOTRACEBACK=all"}
	cmd.Stderr = m.log
	return cmd
}

func (m *machine) strangerCommand() *exec.Cmd {
	return m.play("worker", byItself, string(m.place), "by itself")
}

// crowdCommand is a client process. There are many, each of which has enough of one processor.
func (m *machine) crowdCommand() *exec.Cmd {
	cmd := m.play("crowd", string(m.place), strconv.FormatInt(m.serial.Add(1), 10), strconv.Itoa(m.Callers), strconv.Itoa(m.Lessees))
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	return cmd
}

// runtimeCommand is broker-run: every other one takes its leases back, and every third has two networks.
func (m *machine) runtimeCommand(i int) *exec.Cmd {
	args := []string{"--socket", m.socket(), "--hostname", "runtime-" + strconv.Itoa(i), "--grace", "1s"}
	if i%2 == 0 {
		args = append(args, "--on-loss", "reclaim", "--grace", "20s")
	}
	if i%3 == 0 {
		args = append(args, "--network", "default", "--network", "lab")
	}
	resident := m.play("resident", string(m.place), strconv.Itoa(i))
	cmd := exec.Command(filepath.Join(m.Programs, "broker-run"), append(append(args, "--", resident.Path), resident.Args[1:]...)...)
	cmd.Env = resident.Env
	return cmd
}

// end ends everybody, the broker last and in order, and checks that nothing is left.
func (m *machine) end() {
	m.ending.Store(true)
	m.release()
	for _, a := range m.everyActor() {
		a.signal(syscall.SIGKILL)
	}
	m.broker.signal(syscall.SIGTERM)
	deadline := time.Now().Add(patience)
	for !m.broker.over() && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if !m.broker.over() {
		m.found(finding(noRecovery, "brokerd does not stop within %v", patience))
		m.broker.signal(syscall.SIGKILL)
	}
	m.keeping.Wait()
	left := m.processes()
	for ; len(left) > 0 && time.Now().Before(deadline); left = m.processes() {
		time.Sleep(5 * time.Millisecond)
	}
	for _, p := range left {
		m.found(finding(leakedProcess, "at the end: %v", p))
		syscall.Kill(p.PID, syscall.SIGKILL)
	}
	if _, err := os.Lstat(m.socket()); err == nil {
		m.found(finding(leakedFile, "at the end: %s", m.socket()))
	}
	m.log.Close()
}

// mostFindings is how many findings of one check are told: further ones are more of the same.
const mostFindings = 8

// found notes a finding.
func (m *machine) found(f Finding) {
	m.report.mu.Lock()
	defer m.report.mu.Unlock()
	same := 0
	for _, g := range m.report.Findings {
		if g.Check == f.Check {
			same++
		}
	}
	if same < mostFindings {
		m.report.Findings = append(m.report.Findings, f)
	}
}

// collect notes what the actors have found, what the programs have said before they ended by themselves, and their data races. It reports whether anything was found.
func (m *machine) collect() bool {
	all, err := m.place.found()
	if err != nil {
		all = append(all, finding(machineFault, "%v", err))
	}
	os.Remove(m.at("findings"))
	races, _ := filepath.Glob(m.at("race.*"))
	for _, path := range races {
		text, _ := os.ReadFile(path)
		all = append(all, finding(dataRace, "%s", text))
		os.Remove(path)
	}
	logs, _ := filepath.Glob(m.socket() + ".d/*.log*")
	for _, path := range append(logs, m.at("brokerd.log")) {
		text, _ := os.ReadFile(path)
		if at := strings.Index("\n"+string(text), "\npanic: "); at >= 0 {
			all = append(all, finding(crash, "%s: %.4000s", filepath.Base(path), text[at:]))
		} else if at := strings.Index("\n"+string(text), "\nfatal error: "); at >= 0 {
			all = append(all, finding(crash, "%s: %.4000s", filepath.Base(path), text[at:]))
		}
	}
	for _, f := range all {
		m.found(f)
	}
	return len(m.report.Findings) > 0
}

// writeFiles writes the configuration. Each time something else is changed that means nothing.
func (m *machine) writeFiles() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	n := m.reloads
	m.reloads++
	program, err := os.Executable()
	if err != nil {
		return err
	}
	services := m.at("config", "services.d")
	write := func(name, text string) {
		path := filepath.Join(services, name)
		err = errors.Join(err, os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path))
	}
	common := fmt.Sprintf("throttle_interval = \"1ms\"\nstart_timeout = \"10s\"\nstop_timeout = \"%ds\"\n", 3+n%2)
	for name, how := range map[string]string{onDemand: "idle_exit = \"500ms\"", keptAlive: "keep_alive = \"always\"\nrun_at_load = true", careful: "keep_alive = \"on_failure\""} {
		write(name+".toml", fmt.Sprintf("name = %q\nprogram = [%q, %q, %q]\n%s\n%s[environment]\n%s = \"worker\"\n%s = %q\nGORACE = %q\n[allow]\nopen = [\"any\"]\n",
			name, program, name, string(m.place), how, common, roleVariable, breakVariable, m.Break, m.gorace()))
	}
	write(byItself+".toml", fmt.Sprintf("name = %q\n[allow]\nopen = [\"any\"]\n", byItself))
	write("network.toml", "name = \"fairlead.network\"\n"+common+"[environment]\nGOTRACEBACK = \"all\"\nGORACE = "+strconv.Quote(m.gorace())+"\n")
	if n%2 == 1 {
		write(additional+".toml", fmt.Sprintf("name = %q\nprogram = [\"/bin/true\"]\n", additional))
	} else {
		os.Remove(filepath.Join(services, additional+".toml"))
	}
	networks := fmt.Sprintf("[[network]]\nname = \"default\"\nprefixes = [\"10.77.0.0/24\"]\nquarantine = \"%dms\"\n"+
		"[[network]]\nname = \"lab\"\nprefixes = [\"10.78.0.0/26\", \"fd77::/122\"]\n", 10*(n%3))
	path := m.at("config", "network.toml")
	return errors.Join(err, os.WriteFile(path+".new", []byte(networks), 0o644), os.Rename(path+".new", path))
}

// gorace are the settings of the race detector: a process of it would sleep for a second at its exit.
func (m *machine) gorace() string { return "atexit_sleep_ms=0 log_path=" + m.at("race") }

// rank returns one of a list by a rank that a plan has drawn.
func rank[T any](list []T, n int) (one T, ok bool) {
	if len(list) == 0 {
		return one, false
	}
	return list[n%len(list)], true
}
