package runner

import (
	"encoding/gob"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// initName is the argv[0] by which a program knows that it is a container's init.
const initName = "fairlead-init"

// killInterval is how often a container that must die is looked through for what is left.
const killInterval = 5 * time.Millisecond

// This runs on the main thread, which lasts as long as the process. What belongs to a thread
// (the death signal, capabilities, the parent of the command) belongs to that one.
func init() {
	if len(os.Args) == 2 && os.Args[0] == initName {
		syscall.Exit(initMain(os.Args[1])) // os.Exit has hooks, and sleeps for 1 s under the race detector
	}
}

// An initState is what the init is about. Only these transitions happen:
//
//	waiting ── orderStart ──▶ running ── orderTerminate ──▶ terminating
//	                             │                              │
//	                             └──── orderKill, or the end ───┴──▶ killing
//
// The end is the command's in running, and the caller's in each state. In a pid namespace the
// init exits at the end instead of killing, and the kernel kills all that is left.
// In running, terminating and killing the init exits when it has no child left.
type initState int

const (
	waiting initState = iota
	running
	terminating
	killing
)

// An initProcess is the init's side of a container. One goroutine uses it.
type initProcess struct {
	config  config
	state   initState
	encoder *gob.Encoder
	command int // its pid, 0 before it has started and after it was reaped
	again   <-chan time.Time
}

func initMain(descriptor string) int {
	children := absorbSignals()
	fd, err := strconv.Atoi(descriptor)
	if err != nil || fd < 3 || process.CloseOnExec(3) != nil {
		return statusFailed
	}
	conn := os.NewFile(uintptr(fd), "container's caller")
	decoder := gob.NewDecoder(conn)
	p := &initProcess{encoder: gob.NewEncoder(conn)}
	if decoder.Decode(&p.config) != nil {
		return statusFailed
	}
	setUp := setUpKeeper
	if p.config.Mode.Namespaces {
		setUp = p.config.Mode.setUpNamespaces
	}
	if step, err := setUp(); err != nil {
		p.send(report{Kind: reportFailed, Step: step, Errno: errnoOf(err)})
		return statusFailed
	}
	p.send(report{Kind: reportReady})
	orders := make(chan order)
	go takeOrders(decoder, orders) // ends with the process
	p.serve(orders, children)
	return 0
}

// absorbSignals handles what would end or stop a Go program, for the init is in the command's
// process group and must outlive what a terminal or a supervisor sends to that; the runtime
// drops the other signals by itself, see os/signal. A handled signal is default again in an
// executed command; one that was ignored at the start stays ignored in it.
// The channel tells of children that ended.
func absorbSignals() <-chan os.Signal {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	absorbed := make(chan os.Signal, 1) // nobody reads it: Notify drops what does not fit
	for _, sig := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGABRT,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(absorbed, sig)
		}
	}
	return children
}

func takeOrders(decoder *gob.Decoder, orders chan<- order) {
	defer close(orders)
	for {
		var o order
		if decoder.Decode(&o) != nil {
			return
		}
		orders <- o
	}
}

// send cannot fail in a way that matters: without a caller the orders end too.
func (p *initProcess) send(r report) { _ = p.encoder.Encode(r) }

// serve returns when the init shall exit.
func (p *initProcess) serve(orders <-chan order, children <-chan os.Signal) {
	for {
		exit := false
		select {
		case o, ok := <-orders:
			if ok {
				exit = p.obey(o)
			} else {
				orders = nil
				exit = p.finish()
			}
		case <-children:
		case <-p.again:
			p.signalAll(syscall.SIGKILL)
		}
		if exit || p.state != waiting && p.settle() {
			return
		}
	}
}

// obey carries out one order and reports whether the init shall exit.
func (p *initProcess) obey(o order) (exit bool) {
	switch o.Kind {
	case orderStart:
		return p.state == waiting && !p.start(o.Env)
	case orderSignal:
		if p.command != 0 {
			unix.Kill(p.command, o.Signal) // not reaped yet, so the pid is still the command's
		}
	case orderTerminate:
		if p.state == running {
			p.state = terminating
			p.signalAll(syscall.SIGTERM)
			p.signalAll(syscall.SIGCONT)
		}
	case orderKill:
		p.kill()
	}
	return false
}

// settle reaps what has ended and reports whether the init shall exit.
func (p *initProcess) settle() (exit bool) {
	if !p.reap() {
		return true
	}
	return p.command == 0 && p.state == running && p.finish()
}

// reap takes the status of every child that has ended and reports whether one is left.
func (p *initProcess) reap() (left bool) {
	return process.Reap(func(pid int, status syscall.WaitStatus) {
		if pid == p.command {
			p.command = 0
			p.send(report{Kind: reportEnded, Status: status})
		}
	})
}

// finish ends what is left and reports whether the init shall exit for that.
func (p *initProcess) finish() (exit bool) {
	if p.config.Mode.Namespaces || p.state == waiting {
		return true
	}
	p.kill()
	return false
}

func (p *initProcess) kill() {
	if p.state == killing {
		return
	}
	p.state = killing
	p.signalAll(syscall.SIGKILL)
	p.again = time.Tick(killInterval)
}

// signalAll sends sig to everything in the container but the init.
func (p *initProcess) signalAll(sig syscall.Signal) {
	if p.config.Mode.Namespaces {
		unix.Kill(-1, sig)
	} else {
		signalFamily(sig)
	}
}

// start executes the command with the environment env and reports whether it runs.
func (p *initProcess) start(env []string) bool {
	if p.config.Dir != "" {
		if err := os.Chdir(p.config.Dir); err != nil {
			p.send(report{Kind: reportFailed, Step: "change to the folder " + p.config.Dir, Errno: errnoOf(err)})
			return false
		}
	}
	attr := &syscall.ProcAttr{Env: env, Sys: &syscall.SysProcAttr{}}
	for fd := range uintptr(3 + p.config.ExtraFiles) {
		attr.Files = append(attr.Files, fd)
	}
	if !p.config.Mode.Namespaces {
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	pid, err := syscall.ForkExec(p.config.Path, p.config.Args, attr)
	if err != nil {
		p.send(report{Kind: reportNotStarted, Errno: errnoOf(err)})
		return false
	}
	p.command = pid
	p.state = running
	p.letGo()
	p.send(report{Kind: reportStarted})
	return true
}

// letGo closes the init's copies of the command's files, so that the other end of a pipe sees
// its end when the command closes it.
func (p *initProcess) letGo() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(null)
	for fd := range 3 {
		unix.Dup3(null, fd, 0)
	}
	for i := range p.config.ExtraFiles {
		unix.Close(3 + i)
	}
}
