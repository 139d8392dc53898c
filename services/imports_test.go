package services_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestWhatAuthorsAndClientsImportPullsInYamuxMsgpackAndSysOnly(t *testing.T) {
	const own = "github.com/fairlead-dev/fairlead/"
	allowed := []string{"github.com/hashicorp/yamux", "github.com/vmihailenco/msgpack/v5", "github.com/vmihailenco/tagparser/v2", "golang.org/x/sys"}
	for _, pkg := range []string{"client", "services", "services/network"} {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{.Module.Path}}{{end}}", own+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			path, module, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch {
			case strings.HasPrefix(path, own):
				if strings.HasPrefix(path, own+"broker") || strings.HasPrefix(path, own+"cmd") {
					t.Errorf("%s imports %s", pkg, path)
				}
			case !slices.Contains(allowed, module):
				t.Errorf("%s imports %s", pkg, path)
			}
		}
	}
}

func TestTheTreeKeepsItsLayers(t *testing.T) {
	const own = "github.com/fairlead-dev/fairlead/"
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}: {{join .Imports \" \"}}", own+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		path, imports, _ := strings.Cut(strings.TrimSpace(line), ": ")
		path = strings.TrimPrefix(path, own)
		for imported := range strings.SplitSeq(imports, " ") {
			switch {
			case imported == "github.com/hashicorp/yamux" && path != "wire/session" && path != "cmd/internal/bench":
				t.Errorf("%s imports yamux: only wire/session may, and cmd/internal/bench, which compares with it", path)
			case imported == "github.com/vmihailenco/msgpack/v5" && path != "wire":
				t.Errorf("%s imports msgpack: only wire may", path)
			case strings.HasPrefix(imported, "github.com/prometheus/") && path != "cmd/internal/metrics":
				t.Errorf("%s imports %s: only cmd/internal/metrics may", path, imported)
			case imported == own+"cmd/internal/metrics" && path != "cmd/brokerd":
				t.Errorf("%s imports %s: only brokerd shows metrics", path, imported)
			case imported == own+"broker" && !strings.HasPrefix(path, "cmd/") && path != "broker/brokertest" && path != "e2e/faults":
				t.Errorf("%s imports broker: only commands, and what tests are made of, may", path)
			case strings.HasPrefix(path, "broker") && strings.HasPrefix(imported, own+"services/network"):
				t.Errorf("%s imports %s: to the broker it is a service like any other", path, imported)
			}
		}
	}
}
