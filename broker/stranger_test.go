package broker_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestAFirstFrameThatClaimsALargeBodyIsRefusedBeforeItCostsMemory(t *testing.T) {
	b := brokertest.Start(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	claim := wire.Header{Kind: wire.KindLarge, Length: wire.MaxLarge}.Append(nil)
	const crowd = 150
	var all []*net.UnixConn
	for range crowd {
		conn, err := connect(b.Socket)
		must(t, err)
		defer conn.Close()
		_, err = conn.Write(claim)
		must(t, err)
		all = append(all, conn)
	}
	for _, conn := range all {
		if err := answer(conn); !errors.Is(err, wire.Malformed) {
			t.Fatalf("%v, want %s", err, wire.Malformed)
		}
	}
	runtime.ReadMemStats(&after)
	if cost := after.TotalAlloc - before.TotalAlloc; cost > crowd*wire.MaxLarge/10 {
		t.Errorf("%d bytes for %d connections", cost, crowd)
	}
}

// knockers is how many strangers there are: more than a broker waits for whose first frame has not come.
const knockers = 1100

// knockAsStrangers opens connections, says nothing on them, and prints how many were turned away. They stay until its input ends.
func knockAsStrangers() {
	var all []*net.UnixConn
	for range knockers {
		conn, err := connect(os.Getenv(socket.Variable))
		fail(err)
		conn.SetDeadline(time.Now().Add(patience)) // who keeps a place is let go in its time
		all = append(all, conn)
	}
	refused := 0
	for _, conn := range all {
		if errors.Is(answer(conn), wire.OverQuota) {
			refused++
		}
	}
	fmt.Println(refused)
	os.Stdin.Read(make([]byte, 1))
}

// asStranger returns a command that runs a copy of this test's binary as another user.
func asStranger(t *testing.T) *exec.Cmd {
	t.Helper()
	folder := brokertest.Socket(t) + ".copy"
	program, err := os.ReadFile("/proc/self/exe")
	must(t, err, os.Chmod(filepath.Dir(folder), 0o755), os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, "program"), program, 0o755))
	cmd := exec.Command(filepath.Join(folder, "program"))
	cmd.Dir = folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestStrangersWhoSayNothingTakeNobodysPlaceButTheirOwn(t *testing.T) {
	needsRoot(t)
	const places = 64 // of one stranger
	b := brokertest.Start(t)
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	strangers := playWith(t, asStranger(t), "strangers", "", b.Socket)
	away, err := strconv.Atoi(strangers.line(t))
	if must(t, err); away < knockers-5*places { // who comes late on a loaded machine may find a place that was given up
		t.Errorf("%d of %d connections of a stranger are turned away, want all but %d", away, knockers, places)
	}
	ask[broker.Status](t, b, broker.MethodStatus, nil)
}

func TestOpensBeyondTheMostThatWaitAreRefusedAndThoseWhoLeaveFreeTheirPlace(t *testing.T) {
	const most, rest = 128, 50
	keepsWhatIsLeft(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: startedEndpoint, Endpoints: []string{startedEndpoint}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: time.Minute},
	}})
	ask[broker.Status](t, b, broker.MethodStatus, nil) // what a first open leaves open is open now
	files := descriptors(t, os.Getpid())
	refused := make(chan error, most+rest)
	open := func() *net.UnixConn {
		conn, err := connect(b.Socket)
		must(t, err, say(conn, wire.KindOpen, wire.Open{Endpoint: startedEndpoint}))
		go func() { refused <- answer(conn) }()
		return conn
	}
	var all []*net.UnixConn
	for range most + rest {
		all = append(all, open())
	}
	for range rest {
		if err := <-refused; !errors.Is(err, wire.OverQuota) {
			t.Fatalf("refused with %v, want %s", err, wire.OverQuota)
		}
	}
	if _, err := client.Dial(within(t, patience), startedEndpoint, client.Options{Socket: b.Socket, NoWait: true}); !errors.Is(err, wire.OverQuota) {
		t.Errorf("one more: %v, want %s", err, wire.OverQuota)
	}
	for _, conn := range all {
		conn.Close()
	}
	const starting = 6 // the lock, the control connection, the handles of the process that does not register, and what watches it
	until(t, "those who left have left no descriptors", func() bool { return descriptors(t, os.Getpid()) <= files+starting })
	if _, err := client.Dial(within(t, 100*time.Millisecond), startedEndpoint, client.Options{Socket: b.Socket}); !errors.Is(err, wire.DeadlineExceeded) {
		t.Errorf("an open when all have left: %v, want it to wait", err)
	}
}

// The guard is that joinLocked counts the opens of one user: without, whoever may open a service that is not there yet can have everybody else refused.
func TestOpensOfAStrangerThatWaitTakeNobodysPlaceButTheirOwn(t *testing.T) {
	needsRoot(t)
	const most = 128
	b := brokertest.StartWith(t, broker.Config{Quotas: few(quota.Connections, 2*most), Services: []servicefile.Service{
		{Name: mute, Endpoints: []string{mute}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: time.Minute, StopTimeout: time.Second, Allow: servicefile.Allow{Open: ruled(t, "any")}},
	}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	takes(t, asStranger(t).Path, b.Socket, nobody, taking{Kind: quota.Waiting, N: most + 1}).line(t)
	until(t, "all its opens wait", func() bool { return inspected(t, b, mute).Waiting == most })
	if _, err := client.Dial(within(t, 100*time.Millisecond), mute, client.Options{Socket: b.Socket, NoWait: true}); !errors.Is(err, wire.DeadlineExceeded) {
		t.Errorf("another user's open: %v, want it to wait", err)
	}
}
