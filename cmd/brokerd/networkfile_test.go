package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// declare writes a place's network.toml.
func (p *place) declare(text string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, "network.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func TestTheNetworkServiceHasItsNetworksFromAFileAndReloadsIt(t *testing.T) {
	p := newPlace(t)
	b := p.serve()
	path := p.declare("[[network]]\nname = \"lab\"\nprefixes = [\"10.9.0.0/24\"]\n")
	d := start(t, exec.Command(binary, "network", "--socket", p.socket, "--config-dir", filepath.Join(p.dir, "services.d"), "--config-dir", p.dir))
	if !soon(func() bool { return p.inspect(network.Endpoint).State != broker.ServiceStopped }) {
		t.Fatal("the network service has not registered")
	}
	s := p.dial(network.Endpoint)
	lease, err := network.Allocate(within(t), s, network.Request{Network: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	for n, change := range []struct{ text, says string }{
		{"[[network]]\nname = \"lab\"\nprefixes = [\"10.8.0.0/24\"]\n", lease.ID},
		{"[[network]]\nname = \"lab\"\nprefix = \"10.8.0.0/24\"\n", path + ":3: network[0].prefix: unknown key"},
	} {
		p.declare(change.text)
		d.cmd.Process.Signal(syscall.SIGHUP)
		if text, _ := d.await(`"level":"ERROR"`, n+1)["err"].(string); !strings.Contains(text, change.says) {
			t.Errorf("of a change that cannot be it says %q, want %q", text, change.says)
		}
	}
	p.declare("[[network]]\nname = \"lab\"\nprefixes = [\"10.9.0.0/16\", \"fd00:9::/64\"]\n")
	d.cmd.Process.Signal(syscall.SIGHUP)
	d.await("networks reloaded", 1)
	if again, err := network.Allocate(within(t), s, network.Request{Network: "lab"}); err != nil || len(again.Addresses) != 2 || lease.Err() != nil {
		t.Errorf("after the reload it gives %+v, %v, and the lease of before says %v", again, err, lease.Err())
	}
	d.stop()
	b.stop()
}

func TestTheBrokersNetworkServiceHasItsNetworksFromTheFileAndReadsItAnewWithTheServiceFiles(t *testing.T) {
	p := newPlace(t)
	lab := func(prefix string) string { return "[[network]]\nname = \"lab\"\nprefixes = [\"" + prefix + "\"]\n" }
	path := p.declare(lab("10.9.0.0/24"))
	d := p.serve()
	d.cmd.Process.Signal(syscall.SIGHUP) // while there is no network service nothing starts it
	d.await("services reloaded", 1)
	if state := p.inspect(network.Endpoint).State; state != broker.ServiceStopped {
		t.Errorf("after a reload the network service is %s", state)
	}
	s := p.dial(network.Endpoint)
	lease, err := network.Allocate(within(t), s, network.Request{Network: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	prefixes := func() string {
		list, err := network.Networks(within(t), s)
		if err != nil || len(list) != 1 {
			t.Fatalf("the networks are %+v, %v", list, err)
		}
		return strings.Join(list[0].Prefixes, ",")
	}

	p.declare(lab("10.9.0.0/16"))
	d.cmd.Process.Signal(syscall.SIGHUP)
	if !soon(func() bool { return prefixes() == "10.9.0.0/16" }) {
		t.Errorf("after SIGHUP there is %s", prefixes())
	}
	p.declare(lab("10.9.0.0/20"))
	if _, err := console.Ask[broker.Reloaded](within(t), p.options(), broker.MethodReload, nil); err != nil {
		t.Fatal(err)
	}
	if !soon(func() bool { return prefixes() == "10.9.0.0/20" }) {
		t.Errorf("after a reload of the services there is %s", prefixes())
	}
	for n, change := range []struct{ text, says string }{
		{lab("10.8.0.0/24"), lease.ID},
		{"[[network]]\nname = \"lab\"\nprefix = \"10.8.0.0/24\"\n", path + ":3: network[0].prefix: unknown key"},
	} {
		p.declare(change.text)
		d.cmd.Process.Signal(syscall.SIGHUP)
		if text, _ := d.await("the networks stay as they are", n+1)["err"].(string); !strings.Contains(text, change.says) {
			t.Errorf("of a change that cannot be it says %q, want %q", text, change.says)
		}
		if _, err := network.Reload(within(t), s); err == nil || !strings.Contains(err.Error(), change.says) {
			t.Errorf("asked for a change that cannot be, it says %v, want %q", err, change.says)
		}
	}
	if got := prefixes(); got != "10.9.0.0/20" || lease.Err() != nil {
		t.Errorf("after what was refused there is %s, and the lease says %v", got, lease.Err())
	}
	s.Close()
	d.stop()
}

func TestAFileThatIsWrongFromTheBeginningIsToldAndKeepsTheNetworkServiceAlone(t *testing.T) {
	p := newPlace(t)
	path := p.declare("[[network]]\nname = \"lab\"\n")
	d := p.serve()
	if text, _ := d.await("the network service cannot be started", 1)["err"].(string); !strings.Contains(text, path+":") {
		t.Errorf("it says %q, want the file", text)
	}
	if s, err := client.Dial(within(t), network.Endpoint, p.options()); !errors.Is(err, wire.StartFailed) {
		t.Errorf("an open has %v, %v, want %s", s, err, wire.StartFailed)
	}
	p.declare("[[network]]\nname = \"lab\"\nprefixes = [\"10.9.0.0/24\"]\n")
	if !soon(func() bool { // one that comes while the failure is still being told is told that, too
		_, err := console.Ask[broker.ServiceDetails](within(t), p.options(), broker.MethodStart, broker.ServiceRequest{Name: network.Endpoint})
		return err == nil
	}) {
		t.Error("it does not start with a file that is right")
	}
	s := p.dial(network.Endpoint)
	if list, err := network.Networks(within(t), s); err != nil || len(list) != 1 || list[0].Name != "lab" {
		t.Errorf("the networks are %+v, %v", list, err)
	}
	s.Close()
	d.stop()
}

func TestWhatSaysTheNetworksIsGivenOnce(t *testing.T) {
	folder := openFolder(t)
	path := filepath.Join(folder, "network.toml")
	if err := os.WriteFile(path, []byte("[[network]]\nname = \"a b\"\nprefixes = [\"10.9.0.1/24\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		says []string
	}{
		{[]string{"--networks", path}, []string{path + ":2: network[0].name", path + ":3: network[0].prefixes"}},
		{[]string{"--config-dir", folder, "--network", "a=10.9.0.0/24"}, []string{"give one", path}},
		{[]string{"--networks", path + ".missing"}, []string{"no such file"}},
	} {
		cmd := exec.Command(binary, append([]string{"network", "--socket", filepath.Join(folder, "b.sock")}, test.args...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("%v: %v, want exit status 2", test.args, err)
		}
		for _, says := range test.says {
			if !strings.Contains(string(out), says) {
				t.Errorf("%v: it says %s, want %q", test.args, out, says)
			}
		}
	}
}
