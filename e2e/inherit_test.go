package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
)

const inventoryEndpoint = "com.example.inventory"

// An inventory is what a process has been given.
type inventory struct {
	Files       []string `msgpack:"f"` // what its descriptors lead to
	Environment []string `msgpack:"e"`
}

// playInventory serves inventoryEndpoint as the broker has started it.
func playInventory([]string) error {
	var began inventory
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			began.Files = append(began.Files, to)
		}
	}
	began.Environment = os.Environ()
	mux := services.NewMux()
	services.Handle(mux, "has", func(context.Context, any) (inventory, error) { return began, nil })
	services.Handle(mux, "child", func(ctx context.Context, _ any) (inventory, error) {
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `for f in /proc/$$/fd/*; do readlink $f; done; echo; env`)
		cmd.Stdin, cmd.Stderr = nil, nil // both are /dev/null, and its output is a pipe
		out, err := cmd.Output()
		files, environment, _ := strings.Cut(string(out), "\n\n")
		return inventory{Files: strings.Fields(files), Environment: strings.Fields(environment)}, err
	})
	return services.Server{Endpoints: map[string]*services.Mux{inventoryEndpoint: mux}}.Serve(context.Background())
}

// guard: the environment that broker/start.go makes, and close-on-exec of all that the broker has inherited and opened. Of the instance's children: close-on-exec of the control
// connection and of the lock in services/register.go, and that both are taken out of its environment.
func TestAnInstanceGetsOnlyTheDescriptorsAndTheEnvironmentThatAreMeantForIt(t *testing.T) {
	w := newWorld(t)
	secret, err := os.Create(filepath.Join(w.dir, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	file := filepath.Join(w.config(), "services.d", "inventory.toml")
	text := `name = "` + inventoryEndpoint + `"
program = ["/usr/bin/env", "` + roleVariable + `=inventory", "` + self() + `"]
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := w.serve()
	cmd.ExtraFiles = []*os.File{secret, secret, secret} // not close-on-exec, as a careless parent leaves them
	cmd.Env = []string{"FAIRLEAD_SECRET=s3cret", "LD_PRELOAD=", "LANG=C"}
	w.broker = w.start(cmd)
	w.broker.stderr.await(t, "broker started")
	s := w.dial(inventoryEndpoint)
	has, err := client.Call[inventory](within(t, patience), s, "has", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range has.Files {
		kind, _, _ := strings.Cut(to, ":")
		known := to == os.DevNull || kind == "pipe" || kind == "socket" || kind == "anon_inode" || strings.HasPrefix(to, "/proc/") || strings.HasPrefix(to, "/sys/fs/cgroup/") || // the runtime looks at its limits
			strings.HasSuffix(to, inventoryEndpoint+".lock")
		if !known {
			t.Errorf("it has %s open, of %q", to, has.Files)
		}
	}
	meant := []string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME",
		"FAIRLEAD_LANE", "FAIRLEAD_TRACE", "FAIRLEAD_SOCKET", "FAIRLEAD_CONTROL", "FAIRLEAD_LOCK", "FAIRLEAD_INSTANCE", roleVariable,
	}
	for _, variable := range has.Environment {
		if name, _, _ := strings.Cut(variable, "="); !slices.Contains(meant, name) {
			t.Errorf("its environment has %s", variable)
		}
	}
	child, err := client.Call[inventory](within(t, patience), s, "child", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range child.Files {
		if to != os.DevNull && !strings.HasPrefix(to, "pipe:") && !strings.HasPrefix(to, "/proc/") {
			t.Errorf("its child has %s open, of %q", to, child.Files)
		}
	}
	for _, variable := range child.Environment {
		if name, _, _ := strings.Cut(variable, "="); name == services.ControlVariable || name == services.LockVariable || name == services.InstanceVariable {
			t.Errorf("its child's environment has %s", variable)
		}
	}
}
