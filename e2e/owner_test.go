package e2e_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/services/network"
)

func TestASecondNetworkServiceFindsItsLockTaken(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	h := w.holder(1, "default", "")
	h.opened(t)
	h.leased(t)
	second := w.start(exec.Command(program("brokerd"), "network", "--socket", w.socket, "--network", one))
	if code := second.exit(t); code != 1 {
		t.Errorf("it exits %d, want 1", code)
	}
	if text := second.stderr.whole(t); !strings.Contains(text, broker.LockPath(w.socket, network.Endpoint)) {
		t.Errorf("it says %q, want the lock's name", text)
	}
	if all := w.leases(); len(all) != 1 || all[0].State != network.StateHeld {
		t.Errorf("the leases are %+v", all)
	}
}

func TestASecondBrokerFindsItsLockTaken(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	second := w.start(w.serve())
	if code := second.exit(t); code != 1 {
		t.Errorf("it exits %d, want 1", code)
	}
	if text := second.stderr.whole(t); !strings.Contains(text, w.socket+".lock") {
		t.Errorf("it says %q, want the lock's name", text)
	}
	if _, errs, code := w.ctl("status"); code != 0 {
		t.Errorf("the first answers no longer: brokerctl exits %d: %s", code, errs)
	}
}

func TestABrokerServesItsOwnUserAndRootOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	w := newWorld(t, one)
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.startBroker()
	cmd := exec.Command(program("brokerctl"), "lease", "list")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	other := w.start(cmd)
	if code := other.exit(t); code != 4 {
		t.Errorf("brokerctl of another user exits %d, want 4: denied", code)
	}
	if text := other.stderr.whole(t); !strings.Contains(text, "uid 65534") {
		t.Errorf("it says %q, want the uid that is not served", text)
	}
	status := ctlJSON[struct{ Denied int }](w, "status", "status")
	if status.Denied != 1 {
		t.Errorf("%d denials are counted, want 1", status.Denied)
	}
}
