package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
)

// roleVariable has this test's program play a process that a test needs.
const roleVariable = "FAIRLEAD_E2E_ROLE"

// play plays a role and returns the exit code.
func play(role string, args []string) int {
	roles := map[string]func(args []string) error{
		"holder":    playHolder,
		"victim":    playVictim,
		"reporter":  playReporter,
		"hog":       playHog,
		"echo":      playEcho,
		"lastwords": playLastWords,
		"frail":     playFrail,
		"crowd":     playCrowd,
		"target":    playTarget,
		"attacker":  playAttacker,
		"knocker":   playKnocker,
		"flooder":   playFlooder,
		"inventory": playInventory,
		"throng":    playThrong,
		"server":    playServer,
		"hostile":   playHostile,
		"horde":     playHorde,
		"good":      playGood,
		"plain":     playPlain,
		"stranger":  playStranger,
	}
	if err := roles[role](args); err != nil {
		fmt.Fprintf(os.Stderr, "%s %q: %v\n", role, args, err)
		return 1
	}
	return 0
}

// The marks that a victim makes by a system call without any effect, for who traces it: before it opens its session, and after its lease has come.
const (
	markOption = 0x666c // no option of prctl
	markBegin  = 1
	markEnd    = 2
)

func mark(what uintptr) { unix.Prctl(markOption, what, 0, 0, 0) }

// playVictim opens a session and leases an address once, and then waits to be killed.
func playVictim([]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mark(markBegin)
	s, err := client.Dial(ctx, network.Endpoint, client.Options{})
	if err != nil {
		return err
	}
	lease, err := network.Allocate(ctx, s, network.Request{})
	mark(markEnd)
	if err != nil {
		return err
	}
	fmt.Println("lease", lease.ID)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// playReporter is a container's command: it writes its address and the time into a file, again and again until it is killed. After SIGTERM it goes
// on as long as its second argument says.
func playReporter(args []string) error {
	deaf, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	var over <-chan time.Time
	tick := time.NewTicker(20 * time.Millisecond)
	for first := true; ; first = false {
		if _, err := fmt.Fprintf(f, "%s %d\n", os.Getenv("FAIRLEAD_ADDRESS"), monotonic()); err != nil {
			return err
		}
		if first {
			fmt.Println(os.Getenv("FAIRLEAD_ADDRESS"))
		}
		select {
		case <-tick.C:
		case <-asked:
			over = time.After(deaf)
		case <-over:
			return nil
		}
	}
}

// playHog holds as many bytes of memory as its argument says.
func playHog(args []string) error {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for at := 0; at < size; at += 4096 {
		memory[at] = 1
	}
	fmt.Println("touched", size)
	signal.Ignore(syscall.SIGTERM)
	select {}
}

// The endpoints of the tests' own services.
const (
	echoEndpoint      = "com.example.echo"
	lastWordsEndpoint = "com.example.lastwords"
)

type text struct {
	Text string `msgpack:"t"`
}

// playEcho serves echoEndpoint until its standard input ends. The method "wait" answers when its standard input has given a line.
func playEcho([]string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := make(chan string)
	go func() {
		defer cancel()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, r text) (text, error) { return r, nil })
	services.Handle(mux, "wait", func(ctx context.Context, r text) (text, error) {
		fmt.Println("waiting")
		return text{<-lines}, nil
	})
	return services.Server{Endpoints: map[string]*services.Mux{echoEndpoint: mux}, Ready: func() { fmt.Println("ready") }}.Serve(ctx)
}

// lastWords is the size of the reply of lastWordsEndpoint, in bytes.
const lastWords = 64 << 10

// playLastWords serves one call with a large reply, and is stopped in the very moment in which its handler returns.
func playLastWords([]string) error {
	ctx, cancel := context.WithCancel(context.Background())
	mux := services.NewMux()
	services.HandleOneWay(mux, "noise", func(context.Context, []byte) error { return nil })
	services.Handle(mux, "last", func(context.Context, any) ([]byte, error) {
		defer cancel()
		reply := make([]byte, lastWords)
		for i := range reply {
			reply[i] = byte(i * 7)
		}
		return reply, nil
	})
	return services.Server{Endpoints: map[string]*services.Mux{lastWordsEndpoint: mux}, Ready: func() { fmt.Println("ready") }}.Serve(ctx)
}
