package main_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
)

const (
	manyFiles = 200
	broken    = 77 // the one that is
)

// name is that of one of many services.
func name(n int) string { return fmt.Sprintf("com.example.s%03d", n) }

func TestOneBrokenFileOf200IsSkippedAloneByAReload(t *testing.T) {
	p := newPlace(t)
	for n := range manyFiles {
		p.write(name(n)+".toml", fmt.Sprintf("name = %q\nstop_timeout = \"1s\"\n", name(n)))
	}
	d := p.serve()
	for n := range manyFiles {
		key := "stop_timeout"
		if n == broken {
			key = "stop_time"
		}
		p.write(name(n)+".toml", fmt.Sprintf("name = %q\n%s = \"%ds\"\n", name(n), key, 2+n))
	}
	d.cmd.Process.Signal(syscall.SIGHUP)
	said := d.await("services reloaded", 1)
	if said["added"] != 0.0 || said["changed"] != manyFiles-1.0 || said["removed"] != 0.0 || said["problems"] != 1.0 {
		t.Errorf("brokerd logs %v", said)
	}
	lines := d.log(`"level":"ERROR"`)
	text, _ := d.await(`"level":"ERROR"`, 1)["err"].(string)
	want := filepath.Join(p.dir, "services.d", name(broken)+".toml") + `:2: stop_time: unknown key`
	if len(lines) != 1 || len(text) < len(want) || text[:len(want)] != want {
		t.Errorf("brokerd logs %q, want one line with %q", lines, want)
	}

	s := p.dial(broker.Endpoint)
	for n := range manyFiles {
		got, err := client.Call[broker.ServiceDetails](within(t), s, broker.MethodService, broker.ServiceRequest{Name: name(n)})
		stop := time.Duration(2+n) * time.Second
		if n == broken {
			stop = time.Second // as it was
		}
		if err != nil || got.Stop != stop || got.State != broker.ServiceStopped || !slices.Equal(got.Endpoints, []string{name(n)}) {
			t.Errorf("service %d: %+v, %v", n, got, err)
		}
	}
	d.stop()
}

func TestAFileOfTheNetworkServicesNameSaysHowItDiffers(t *testing.T) {
	p := newPlace(t)
	const file = "network.toml"
	d := p.serve("--network", "default=10.9.0.0/24")
	built := p.inspect(network.Endpoint)
	if built.File != "" || len(built.Program) < 2 || built.Program[0] != binary || built.Program[1] != "network" || len(built.Allow.Open) > 0 {
		t.Errorf("the built-in network service: %+v", built)
	}
	check := func(what string, stop time.Duration, open ...string) {
		t.Helper()
		got := p.inspect(network.Endpoint)
		if !slices.Equal(got.Program, built.Program) || !slices.Equal(got.Endpoints, built.Endpoints) || got.Stop != stop || !slices.Equal(got.Allow.Open, open) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	reload := func(text string) {
		t.Helper()
		p.write(file, text)
		done := len(d.log("services reloaded"))
		d.cmd.Process.Signal(syscall.SIGHUP)
		d.await("services reloaded", done+1)
	}
	reload("name = 'fairlead.network'\nstop_timeout = '7s'\n[allow]\nopen = ['any']\n")
	check("with a file", 7*time.Second, "any")
	reload("name = 'fairlead.network'\nstop_timeout = 7\n")
	check("with a file that was broken", 7*time.Second, "any")

	s := p.dial(network.Endpoint)
	if list, err := network.Networks(within(t), s); err != nil || len(list) != 1 || list[0].Prefixes[0] != "10.9.0.0/24" {
		t.Errorf("the network service answers %v, %v", list, err)
	}
	d.await("network service started", 1) // its log is the broker's
	s.Close()
	reload("")
	d.stop()

	p.write(file, "name = 'fairlead.network'\nstop_timeout = 7\n")
	d = p.serve("--network", "default=10.9.0.0/24")
	check("with a file that is broken from the beginning", built.Stop)
	d.stop()
}

func TestWhatHasTheNetworkServicesEndpointIsSkipped(t *testing.T) {
	p := newPlace(t)
	p.write("thief.toml", "name = 'com.example.thief'\nendpoints = ['com.example.thief', 'fairlead.network']\n")
	d := p.serve()
	if text := d.await("service file skipped", 1)["err"]; text != filepath.Join(p.dir, "services.d", "thief.toml")+
		":2: endpoints: fairlead.network is an endpoint of service fairlead.network, of the broker itself" {
		t.Errorf("brokerd logs %q", text)
	}
	if got := p.inspect(network.Endpoint); got.State != broker.ServiceStopped {
		t.Errorf("the network service: %+v", got)
	}
	d.stop()
}
