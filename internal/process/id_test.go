package process_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/process"
)

func identify(t *testing.T, pid int) process.ID {
	t.Helper()
	id, err := process.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAProcessIsAliveUntilItExits(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "wait")
	id, h := identify(t, c.pid()), open(t, c.pid())
	if !id.Alive() {
		t.Fatal("a running child is not alive")
	}
	c.kill(t)
	within(t, "the child is not gone", h.Gone)
	if id.Alive() {
		t.Error("a zombie is alive")
	}
	if again := identify(t, c.pid()); again != id {
		t.Errorf("the zombie is %v, the process was %v", again, id)
	}
	c.end()
	if id.Alive() {
		t.Error("a child that was waited for is alive")
	}
	if _, err := process.Identify(c.pid()); !errors.Is(err, process.ErrGone) {
		t.Errorf("Identify says %v, want ErrGone", err)
	}
}

func TestAProcessWhoseFirstThreadEndedIsAlive(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "headless")
	id, h := identify(t, c.pid()), open(t, c.pid())
	if !id.Alive() {
		t.Error("it is not alive, though a thread of it runs")
	}
	if h.Gone() {
		t.Error("it is gone, though a thread of it runs")
	}
	c.kill(t)
	within(t, "it is not gone", func() bool { return h.Gone() && !id.Alive() })
}

func TestAnotherProcessWithTheSameNumberIsNotTheOne(t *testing.T) {
	leavesNothing(t)
	own := identify(t, os.Getpid())
	tables := []struct {
		name  string
		id    process.ID
		alive bool
	}{
		{"the same", own, true},
		{"another start", process.ID{PID: own.PID, Start: own.Start + 1, Boot: own.Boot}, false},
		{"another boot", process.ID{PID: own.PID, Start: own.Start, Boot: "another"}, false},
		{"none", process.ID{}, false},
		{"negative", process.ID{PID: -1, Start: own.Start, Boot: own.Boot}, false},
	}
	for _, tt := range tables {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.id.Alive(); got != tt.alive {
				t.Errorf("Alive is %v, want %v", got, tt.alive)
			}
			h, err := process.OpenID(tt.id)
			if tt.alive != (err == nil) {
				t.Fatalf("OpenID says %v", err)
			}
			if err == nil {
				h.Close()
			} else if tt.id.PID > 0 && !errors.Is(err, process.ErrGone) {
				t.Errorf("OpenID says %v, want ErrGone", err)
			}
		})
	}
}

func TestAProgramsNameCannotForgeItsState(t *testing.T) {
	leavesNothing(t)
	forged := filepath.Join(t.TempDir(), ") Z 1 (\n0")
	binary, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(forged, binary, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, forged, "wait")
	if id := identify(t, c.pid()); !id.Alive() || id.Start == 0 {
		t.Errorf("%v is not alive", id)
	}
	h := open(t, c.pid())
	if got, want := h.Program(), ") Z 1 (?0"; got != want {
		t.Errorf("the program is %q, want %q", got, want)
	}
}

func TestAProgramsNameIsShortAndReadable(t *testing.T) {
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, want string }{
		{strings.Repeat("\xff", 100), "?"},
		{strings.Repeat("a\xff", 100), strings.Repeat("a?", 32)},
		{strings.Repeat("é", 100), strings.Repeat("é", 32)},
		{"a" + strings.Repeat("é", 100), "a" + strings.Repeat("é", 31)},
		{strings.Repeat("\u200b", 70), strings.Repeat("?", 64)},
		{strings.Repeat("x", 64), strings.Repeat("x", 64)},
	} {
		t.Run(tt.want, func(t *testing.T) {
			leavesNothing(t)
			path := filepath.Join(t.TempDir(), tt.name)
			if err := os.WriteFile(path, binary, 0o700); err != nil {
				t.Fatal(err)
			}
			c := start(t, path, "wait")
			if got := open(t, c.pid()).Program(); got != tt.want {
				t.Errorf("the program is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAnIDIsWrittenAndReadAsJSON(t *testing.T) {
	id := process.ID{PID: 12, Start: 345, Boot: "b"}
	text, err := json.Marshal(id)
	if err != nil || string(text) != `{"pid":12,"start":345,"boot":"b"}` {
		t.Fatalf("it is %s, %v", text, err)
	}
	var again process.ID
	if err := json.Unmarshal(text, &again); err != nil || again != id {
		t.Errorf("it came back as %v, %v", again, err)
	}
	if id.IsZero() || !(process.ID{}).IsZero() {
		t.Error("IsZero is wrong")
	}
}
