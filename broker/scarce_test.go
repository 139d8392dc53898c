package broker_test

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// leaving leaves this process, and the broker in it, so many descriptors more than it has open, until the returned function is called.
func leaving(t *testing.T, free int) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	var taken []*os.File
	highest := 0
	for range 64 { // more than there are gaps below the highest that is open
		f, err := os.Open(os.DevNull)
		must(t, err)
		taken = append(taken, f)
		highest = max(highest, int(f.Fd()))
	}
	few := unix.Rlimit{Cur: uint64(highest) + 1, Max: before.Max}
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	for _, f := range taken[:free] {
		f.Close()
	}
	return func() {
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
		for _, f := range taken[free:] {
			f.Close()
		}
	}
}

// Of the copy of the instance's pidfd the broker needs two descriptors at once, and of the registration one. Without the guard, scarcity in life.accompany, the
// service has no life beside its registered instance, and no open reaches that.
func TestAnInstanceThatRegistersWhileDescriptorsAreScarceIsReachedLater(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{{Name: echoEndpoint, Endpoints: []string{echoEndpoint}}}})
	conn, err := connect(b.Socket)
	must(t, err)
	// The broker has taken the connection and read who it is when it answers somebody who came behind it.
	details(t, b.Socket)
	restore := leaving(t, 1)
	err = say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
	if err == nil {
		err = answer(conn)
	}
	time.Sleep(100 * time.Millisecond) // it is as long as it is for the wrong to happen, and right without
	restore()
	must(t, err)
	conn.SetDeadline(time.Time{})
	control := session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: services.NewMux()})
	defer lose(control)
	if d := details(t, b.Socket); d.State != broker.ServiceRunning || d.PID != os.Getpid() {
		t.Errorf("it is registered, and it is %+v", d)
	}
}

// Without the guard, scarcity in service.adopt, an instance that cannot be taken up at once registers by itself later, and is nobody's to end.
func TestAnInstanceIsTakenUpWhenThereAreDescriptorsAgain(t *testing.T) {
	at := brokertest.Socket(t)
	service, mark := actor(t)
	earlier := playBroker(t, service, os.Geteuid() != 0, at)
	open(t, at)
	was := details(t, at)
	earlier.kill()
	for free := range 12 {
		var restore func()
		load := func() ([]servicefile.Service, []*servicefile.Problem) {
			restore = leaving(t, free)
			return []servicefile.Service{service}, nil
		}
		b, err := broker.New(broker.Config{Socket: at, Load: load, LeaveInstances: true})
		restore()
		if err != nil { // too few to begin at all
			continue
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- b.Serve(ctx) }()
		until(t, "the instance is taken up", func() bool {
			d := details(t, at)
			return d.State == broker.ServiceRunning && d.PID == was.PID && d.Keeper == was.Keeper && d.Instance == was.Instance
		})
		stop()
		must(t, arrives(t, "the broker's end", served))
	}
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
	running(t, b, echoEndpoint)
	b.Stop()
	if left := marked(mark); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
