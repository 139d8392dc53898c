package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services/network"
)

func TestASecondNetworkServiceFindsItsLockTaken(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	h := w.holder(1, "default", "")
	h.opened(t)
	h.leased(t)
	second := w.start(exec.Command(stage.Program("brokerd"), "network", "--socket", w.socket, "--network", one))
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
	cmd := exec.Command(stage.Program("brokerctl"), "lease", "list")
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

// guard: the uid that services/register.go compares with that of the broker before. An instance would tell the next one of its sessions, and take its word for
// who its clients are.
func TestAnInstanceRegistersWithNoBrokerOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	const other = 1234
	w := newWorld(t)
	w.startBroker()
	instance := w.role("target")
	instance.stdout.await(t, "ready")
	w.broker.kill()
	files, err := filepath.Glob(filepath.Join(w.dir, "b.sock*"))
	for _, path := range append(files, w.dir) {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err := errors.Join(err, os.Mkdir(w.dir, 0o755), os.Chown(w.dir, other, other)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(w.brokerd, "serve", "--socket", w.socket, "--config-dir", w.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	w.broker = w.start(cmd)
	w.broker.stderr.await(t, "broker started")
	instance.stderr.await(t, "the broker runs as uid 1234, and the one before ran as 0")
	out, errs, code := w.ctl("service", "list", "--json")
	if code != 0 || strings.Contains(out, targetEndpoint) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
