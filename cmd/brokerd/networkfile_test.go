package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/services/network"
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
