package broker_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// nobody is a user who is not this one.
const nobody = 65534

const startedEndpoint = "com.example.started"

// must fails the test if one of errs is an error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make what belongs to another user")
	}
}

// asNobody runs a command as another user.
func asNobody(command ...string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd.Run()
}

// A trap is what somebody has put in a broker's way. Its folder and its file are elsewhere, and have to stay as they are.
type trap struct{ socket, folder, file string }

func (x trap) services() string { return x.socket + ".d" }

func (x trap) of(suffix string) string { return filepath.Join(x.services(), startedEndpoint+suffix) }

func setTrap(t *testing.T) trap {
	t.Helper()
	elsewhere := t.TempDir()
	x := trap{socket: brokertest.Socket(t), folder: filepath.Join(elsewhere, "folder"), file: filepath.Join(elsewhere, "file")}
	must(t, os.Mkdir(x.folder, 0o700), os.WriteFile(x.file, []byte("precious"), 0o600))
	return x
}

// untouched checks that nothing was written through the trap.
func (x trap) untouched(t *testing.T) {
	t.Helper()
	if text, err := os.ReadFile(x.file); err != nil || string(text) != "precious" {
		t.Errorf("the file elsewhere: %q, %v", text, err)
	}
	if entries, err := os.ReadDir(x.folder); err != nil || len(entries) > 0 {
		t.Errorf("the folder elsewhere: %v, %v", entries, err)
	}
}

func TestAHostileFolderOfServicesFailsTheStartAndNothingInItIsFollowed(t *testing.T) {
	for _, test := range []struct {
		name string
		root bool
		set  func(x trap) error
	}{
		{"another user's folder", true, func(x trap) error {
			return errors.Join(os.Chmod(filepath.Dir(x.socket), 0o777|os.ModeSticky), asNobody("mkdir", "-m", "700", x.services()))
		}},
		{"a folder that others can write", false, func(x trap) error {
			return errors.Join(os.Mkdir(x.services(), 0o700), os.Chmod(x.services(), 0o777|os.ModeSticky))
		}},
		{"a link to a folder", false, func(x trap) error { return os.Symlink(x.folder, x.services()) }},
		{"a link to nothing", false, func(x trap) error { return os.Symlink(filepath.Join(x.folder, "none"), x.services()) }},
		{"a lock that is a link", false, func(x trap) error {
			return errors.Join(os.Mkdir(x.services(), 0o700), os.Symlink(x.file, x.of(".lock")))
		}},
		{"another user's lock", true, func(x trap) error {
			return errors.Join(os.Mkdir(x.services(), 0o700), os.WriteFile(x.of(".lock"), nil, 0o600), os.Chown(x.of(".lock"), nobody, nobody))
		}},
		{"a record that is a link", false, func(x trap) error {
			return errors.Join(os.Mkdir(x.services(), 0o700), os.Symlink(x.file, x.of(".json")))
		}},
		{"a new record that is a link", false, func(x trap) error {
			return errors.Join(os.Mkdir(x.services(), 0o700), os.Symlink(x.file, x.of(".json.new")))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.root {
				needsRoot(t)
			}
			x := setTrap(t)
			must(t, test.set(x))
			started := filepath.Join(t.TempDir(), "started")
			brokertest.StartWith(t, broker.Config{Socket: x.socket, Services: []servicefile.Service{
				{Name: startedEndpoint, Endpoints: []string{startedEndpoint}, Program: []string{"/usr/bin/touch", started}},
			}})
			_, err := client.Dial(within(t, patience), startedEndpoint, client.Options{Socket: x.socket})
			if !errors.Is(err, wire.StartFailed) || !strings.Contains(err.Error(), x.services()) {
				t.Errorf("open: %v, want %s and the folder's name", err, wire.StartFailed)
			}
			if _, err := os.Stat(started); err == nil {
				t.Error("the service was started")
			}
			x.untouched(t)
		})
	}
}

// guard: CheckFolder in makePrivate. Whoever has the folder above could put a link in the place of the one of services at any time.
func TestNothingIsWrittenBelowAFolderThatIsAnothersSinceTheBrokerStarted(t *testing.T) {
	needsRoot(t)
	x := setTrap(t)
	started, above := filepath.Join(t.TempDir(), "started"), filepath.Dir(x.socket)
	brokertest.StartWith(t, broker.Config{Socket: x.socket, Services: []servicefile.Service{
		{Name: startedEndpoint, Endpoints: []string{startedEndpoint}, Program: []string{"/usr/bin/touch", started}},
	}})
	must(t, os.Chown(above, nobody, nobody))
	_, err := client.Dial(within(t, patience), startedEndpoint, client.Options{Socket: x.socket})
	if !errors.Is(err, wire.StartFailed) || !strings.Contains(err.Error(), above) {
		t.Errorf("open: %v, want %s and the folder's name", err, wire.StartFailed)
	}
	if _, err := os.Lstat(x.services()); err == nil {
		t.Error("the folder of services was made")
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the service was started")
	}
}

func TestABrokerDoesNotStartWhereOthersCouldReplaceItsSocket(t *testing.T) {
	for _, test := range []struct {
		name string
		root bool
		set  func(x trap) error
	}{
		{"another user's folder", true, func(x trap) error { return os.Chown(filepath.Dir(x.socket), nobody, nobody) }},
		{"a folder that others can write", false, func(x trap) error { return os.Chmod(filepath.Dir(x.socket), 0o777) }},
		{"a lock that is a link", false, func(x trap) error { return os.Symlink(x.file, x.socket+".lock") }},
		{"another user's lock", true, func(x trap) error {
			return errors.Join(os.WriteFile(x.socket+".lock", nil, 0o666), os.Chown(x.socket+".lock", nobody, nobody))
		}},
		{"a socket that is a link", false, func(x trap) error { return os.Symlink(x.file, x.socket) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.root {
				needsRoot(t)
			}
			leavesNothing(t)
			x := setTrap(t)
			must(t, test.set(x))
			_, err := broker.New(broker.Config{Socket: x.socket})
			if err == nil {
				t.Fatal("the broker is there")
			}
			if !strings.Contains(err.Error(), filepath.Dir(x.socket)) {
				t.Errorf("%v does not name the folder", err)
			}
			x.untouched(t)
		})
	}
}
