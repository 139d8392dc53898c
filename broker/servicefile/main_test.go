package servicefile_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
)

// folderVariable has the test's own program load the service files of a folder, print what comes of it, and end.
const folderVariable = "SERVICEFILE_TEST_FOLDER"

// A loaded is what such a process prints.
type loaded struct{ Names, Problems []string }

func TestMain(m *testing.M) {
	if folder := os.Getenv(folderVariable); folder != "" {
		services, problems := servicefile.Load(folder)
		if err := json.NewEncoder(os.Stdout).Encode(loaded{names(services), texts(problems)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The runtime opens what it keeps open, so that it is not taken for a leak.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := descriptors()
	code := m.Run()
	if after := descriptors(); after > before && code == 0 {
		fmt.Fprintf(os.Stderr, "%d descriptors are open, %d were before\n", after, before)
		code = 1
	}
	os.Exit(code)
}

func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(entries)
}

// put writes a service file that its owner alone can write.
func put(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func names(services []servicefile.Service) []string {
	list := []string{}
	for _, s := range services {
		list = append(list, s.Name)
	}
	return list
}

func texts(problems []*servicefile.Problem) []string {
	list := []string{}
	for _, p := range problems {
		list = append(list, p.Error())
	}
	return list
}

func rules(t testing.TB, list ...string) servicefile.Rules {
	t.Helper()
	var rules servicefile.Rules
	for _, text := range list {
		rule, err := servicefile.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}
