package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// serveSeveral serves some endpoints as a service: the argument is its name and theirs.
func serveSeveral() {
	names := strings.Fields(os.Getenv(argumentVariable))
	s := services.Server{Service: names[0], Endpoints: map[string]*services.Mux{}}
	for _, e := range names[1:] {
		s.Endpoints[e] = echoMux()
	}
	fail(s.Serve(context.Background()))
}

// A tree is the configuration folders of a broker, the first before the second.
type tree [2]string

func plant(t *testing.T) tree {
	t.Helper()
	folder := t.TempDir()
	x := tree{filepath.Join(folder, "etc"), filepath.Join(folder, "lib")}
	for _, path := range x {
		must(t, os.MkdirAll(filepath.Join(path, "services.d"), 0o755))
	}
	return x
}

// path returns the path of a service file in one of the folders.
func (x tree) path(n int, name string) string {
	return filepath.Join(x[n], "services.d", name+".toml")
}

// put writes a service file to the second folder.
func (x tree) put(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(x.path(1, name), []byte(text), 0o644))
}

// start starts a broker of the folders.
func (x tree) start(t *testing.T, l *log) *brokertest.Broker {
	t.Helper()
	return brokertest.StartWith(t, broker.Config{
		Load: func() ([]servicefile.Service, []*servicefile.Problem) { return servicefile.Load(x[:]...) }, Logger: l.logger(),
	})
}

// several is the text of a service file: this test's binary serves the endpoints.
func several(t *testing.T, name string, endpoints ...string) string {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	quoted := make([]string, len(endpoints))
	for n, e := range endpoints {
		quoted[n] = fmt.Sprintf("%q", e)
	}
	return fmt.Sprintf("name = %q\nendpoints = [%s]\nthrottle_interval = \"1ms\"\nprogram = [\"/usr/bin/env\", %q, %q, %q, %q]\n", name, strings.Join(quoted, ", "),
		roleVariable+"=several", argumentVariable+"="+name+" "+strings.Join(endpoints, " "), noSleep, program)
}

func reload(t *testing.T, b *brokertest.Broker) broker.Reloaded {
	t.Helper()
	return ask[broker.Reloaded](t, b, broker.MethodReload, nil)
}

// named returns the names of the services that a broker lists, without its own.
func named(t *testing.T, b *brokertest.Broker) (names []string) {
	t.Helper()
	for _, s := range ask[broker.Services](t, b, broker.MethodServices, nil).Services {
		if s.Name != broker.Endpoint {
			names = append(names, s.Name)
		}
	}
	return names
}

// hasOne checks that there is one problem, with a file and words in its rule.
func hasOne(t *testing.T, problems []broker.ReloadProblem, file string, words ...string) {
	t.Helper()
	if len(problems) != 1 || problems[0].File != file {
		t.Fatalf("problems %+v, want one of %s", problems, file)
	}
	for _, w := range words {
		if !strings.Contains(problems[0].Rule, w) {
			t.Errorf("%q does not say %q", problems[0].Rule, w)
		}
	}
}

func TestAReloadAddsChangesAndRemovesAndWhatRunsGoesOnAsItWasStarted(t *testing.T) {
	const stays, changes, goes, comes = "com.example.stays", "com.example.changes", "com.example.goes", "com.example.comes"
	x, l := plant(t), &log{}
	for _, name := range []string{stays, changes, goes} {
		x.put(t, name, several(t, name, name))
	}
	b := x.start(t, l)
	if done := reload(t, b); !reflect.DeepEqual(done, broker.Reloaded{}) {
		t.Errorf("nothing has changed, and the reload says %+v", done)
	}
	kept := map[string]*client.Session{}
	for _, name := range []string{stays, changes, goes} {
		kept[name] = b.Dial(name, client.Options{})
	}
	x.put(t, changes, several(t, changes, changes)+"nice = 1\n")
	x.put(t, comes, several(t, comes, comes)+"run_at_load = true\n")
	must(t, os.Remove(x.path(1, goes)))
	if done := reload(t, b); !reflect.DeepEqual(done, broker.Reloaded{Added: []string{comes}, Changed: []string{changes}, Removed: []string{goes}}) {
		t.Errorf("the reload says %+v", done)
	}
	if d := comesTo(t, b, comes, broker.ServiceRunning, 1); causeOf(d) != broker.CauseLoad {
		t.Errorf("what was added runs for %+v, want %s", d.Cause, broker.CauseLoad)
	}
	for name, want := range map[string]string{stays: "", changes: broker.PendingChange, goes: broker.PendingRemoval, comes: ""} {
		if d := inspected(t, b, name); d.Pending != want || d.State != broker.ServiceRunning || d.Starts != 1 {
			t.Errorf("%s is %s after %d starts, pending %q, want %q", name, d.State, d.Starts, d.Pending, want)
		}
		b.Dial(name, client.Options{}).Close()
	}
	for name, s := range kept {
		if _, err := client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"}); err != nil {
			t.Errorf("a session of %s: %v", name, err)
		}
	}
	nice := func(pid int) int {
		n, err := syscall.Getpriority(syscall.PRIO_PROCESS, pid)
		must(t, err)
		return 20 - n // getpriority(2): the system call has it the other way round
	}
	was := nice(inspected(t, b, changes).PID)
	d := ask[broker.ServiceDetails](t, b, broker.MethodRestart, broker.ServiceRequest{Name: changes})
	if got := nice(d.PID); d.Pending != "" || got != 1 || was == 1 {
		t.Errorf("restarted, its nice value is %d, and was %d; pending: %q", got, was, d.Pending)
	}
	ask[broker.ServiceDetails](t, b, broker.MethodStop, broker.ServiceRequest{Name: goes})
	until(t, "it is gone", func() bool { return !slices.Contains(named(t, b), goes) })
	if _, err := dial(t, b, goes); !errors.Is(err, wire.UnknownEndpoint) {
		t.Errorf("an open of what was removed: %v, want %s", err, wire.UnknownEndpoint)
	}
}

func TestAServiceThatComesBackBeforeItsInstanceIsGoneIsNotRemoved(t *testing.T) {
	x := plant(t)
	text := several(t, echoEndpoint, echoEndpoint)
	x.put(t, "echo", text)
	b := x.start(t, &log{})
	s := b.Dial(echoEndpoint, client.Options{})
	must(t, os.Remove(x.path(1, "echo")))
	reload(t, b)
	x.put(t, "echo", text)
	if done := reload(t, b); !slices.Equal(done.Changed, []string{echoEndpoint}) || inspected(t, b, echoEndpoint).Pending != "" {
		t.Errorf("the reload says %+v", done)
	}
	must(t, syscall.Kill(s.Peer().PID, syscall.SIGKILL))
	<-s.Done()
	b.Dial(echoEndpoint, client.Options{})
}

func TestAnOpenThatWaitsOutAPauseIsServedThoughTheServicesAreReloaded(t *testing.T) {
	x, gate := plant(t), filepath.Join(t.TempDir(), "gate")
	text := several(t, echoEndpoint, echoEndpoint)
	text = strings.Replace(text, `"1ms"`, `"2s"`, 1)
	text = strings.Replace(text, "program = [", fmt.Sprintf("program = [\"/bin/sh\", \"-c\", \"test -e %s && exec \\\"$0\\\" \\\"$@\\\"\", ", gate), 1)
	x.put(t, "echo", text)
	b := x.start(t, &log{})
	if _, err := dial(t, b, echoEndpoint); !errors.Is(err, wire.StartFailed) {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket})
		if err == nil {
			s.Close()
		}
		opened <- err
	}()
	until(t, "it waits for the pause to end", func() bool {
		d := inspected(t, b, echoEndpoint)
		return d.State == broker.ServiceWaiting && d.Waiting == 1
	})
	must(t, os.WriteFile(gate, nil, 0o600))
	reload(t, b)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestAFileThatBreaksKeepsItsServiceAndSaysSo(t *testing.T) {
	for _, test := range []struct {
		name  string
		does  func(t *testing.T, x tree) (file string)
		words []string
	}{
		{"it no longer parses", func(t *testing.T, x tree) string {
			x.put(t, "echo", "name = ")
			return x.path(1, "echo")
		}, nil},
		{"it has an unknown key", func(t *testing.T, x tree) string {
			x.put(t, "echo", several(t, echoEndpoint, echoEndpoint)+"nise = 1\n")
			return x.path(1, "echo")
		}, []string{"nice"}},
		{"a broken file takes its place", func(t *testing.T, x tree) string {
			must(t, os.WriteFile(x.path(0, "echo"), []byte("name = "), 0o644))
			return x.path(0, "echo")
		}, nil},
		{"others may write its folder", func(t *testing.T, x tree) string {
			folder := filepath.Dir(x.path(1, "echo"))
			must(t, os.Chmod(folder, 0o777))
			return folder
		}, []string{"written by others"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			x, l := plant(t), &log{}
			x.put(t, "echo", several(t, echoEndpoint, echoEndpoint))
			b := x.start(t, l)
			file := test.does(t, x)
			done := reload(t, b)
			if len(done.Added)+len(done.Changed)+len(done.Removed) > 0 {
				t.Errorf("the reload says %+v", done)
			}
			hasOne(t, done.Problems, file, test.words...)
			if n := l.count("service file skipped", file); n != 1 {
				t.Errorf("%d lines of the log are about it, want 1", n)
			}
			b.Dial(echoEndpoint, client.Options{})
			if d := inspected(t, b, echoEndpoint); d.Pending != "" {
				t.Errorf("pending: %q", d.Pending)
			}
		})
	}
}

func TestAFileThatClaimsWhatIsAnothersIsAProblemAndNothingElse(t *testing.T) {
	const first, second = "com.example.first", "com.example.second"
	for _, test := range []struct {
		name, file, text string
		files            []string // that have a problem
		words            string
	}{
		{"the broker's endpoint", second, several(t, second, broker.Endpoint), []string{second}, broker.Endpoint},
		{"the broker's name", second, several(t, broker.Endpoint, second), []string{second}, broker.Endpoint},
		{"an endpoint of a file before it", second, several(t, second, second, first), []string{second}, first},
		{"an endpoint of a file behind it", first, several(t, first, first, second), []string{first, second}, ""},
		{"the name of a file before it", second, several(t, first, second), []string{second}, first},
		{"a new file, an endpoint", "com.example.zero", several(t, "com.example.zero", first), []string{"com.example.zero"}, first},
		{"a new file, an endpoint of a file behind it", "com.example.a", several(t, "com.example.a", first), []string{"com.example.a", first}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := plant(t)
			x.put(t, first, several(t, first, first))
			x.put(t, second, several(t, second, second))
			b := x.start(t, &log{})
			x.put(t, test.file, test.text)
			done := reload(t, b)
			if len(done.Added)+len(done.Changed)+len(done.Removed) > 0 {
				t.Errorf("the reload says %+v", done)
			}
			var files []string
			for _, p := range done.Problems {
				files = append(files, strings.TrimSuffix(filepath.Base(p.File), ".toml"))
				if !strings.Contains(p.Rule, test.words) {
					t.Errorf("%q does not name %s", p.Rule, test.words)
				}
			}
			slices.Sort(files)
			if !slices.Equal(files, test.files) {
				t.Errorf("problems of %v, want %v", files, test.files)
			}
			if got := named(t, b); !slices.Equal(got, []string{first, second}) {
				t.Errorf("services %v", got)
			}
			for _, e := range []string{first, second} {
				s := b.Dial(e, client.Options{})
				if i := running(t, b, e); i.PID != s.Peer().PID {
					t.Errorf("%s is served by process %d, and %s is process %d", e, s.Peer().PID, e, i.PID)
				}
			}
		})
	}
}

func TestAnEndpointMovesFromOneServiceToAnotherInOneReload(t *testing.T) {
	const old, next, its, moves = "com.example.old", "com.example.next", "com.example.its", "com.example.moves"
	for _, runs := range []bool{false, true} {
		t.Run(fmt.Sprintf("while it runs: %t", runs), func(t *testing.T) {
			x := plant(t)
			x.put(t, old, several(t, old, its, moves))
			x.put(t, next, several(t, next, next))
			b := x.start(t, &log{})
			served := func(by string) {
				t.Helper()
				s := b.Dial(moves, client.Options{})
				defer s.Close()
				if i := running(t, b, by); i.PID != s.Peer().PID {
					t.Errorf("it is served by process %d, want %d of %s", s.Peer().PID, i.PID, by)
				}
			}
			if runs {
				served(old)
			}
			x.put(t, old, several(t, old, its))
			x.put(t, next, several(t, next, next, moves))
			if done := reload(t, b); !slices.Equal(done.Changed, []string{next, old}) || len(done.Problems) > 0 {
				t.Errorf("the reload says %+v", done)
			}
			if runs { // for its time
				served(old)
				ask[broker.ServiceDetails](t, b, broker.MethodRestart, broker.ServiceRequest{Name: old})
			}
			served(next)
			b.Dial(its, client.Options{}).Close()
		})
	}
}

func TestAnInstanceDoesNotTakeTheEndpointOfAnotherService(t *testing.T) {
	const thief = "com.example.thief"
	x, l := plant(t), &log{}
	x.put(t, "echo", several(t, echoEndpoint, echoEndpoint))
	x.put(t, "thief", strings.Replace(several(t, thief, thief, echoEndpoint), fmt.Sprintf("%q, %q]", thief, echoEndpoint), fmt.Sprintf("%q]", thief), 1))
	b := x.start(t, l)
	if _, err := dial(t, b, thief); !errors.Is(err, wire.StartFailed) {
		t.Errorf("%v, want %s", err, wire.StartFailed)
	}
	if l.count("registration refused", "belongs to the service "+echoEndpoint) != 1 {
		t.Error("the refusal of its registration does not name the owner")
	}
	b.Dial(echoEndpoint, client.Options{})
}

func TestOfTwoHundredFilesTheBrokenOneIsSkippedAlone(t *testing.T) {
	const files, broken = 200, 77
	x, l := plant(t), &log{}
	name := func(n int) string { return fmt.Sprintf("com.example.n%03d", n) }
	for n := range files {
		x.put(t, name(n), fmt.Sprintf("name = %q\nprogram = [\"/bin/false\"]\n", name(n)))
	}
	b := x.start(t, l)
	for n := range files {
		x.put(t, name(n), fmt.Sprintf("name = %q\nprogram = [\"/bin/true\"]\n", name(n)))
	}
	x.put(t, name(broken), fmt.Sprintf("name = %q\nprogram = \"/bin/true\"\n", name(broken)))
	done := reload(t, b)
	if len(done.Changed) != files-1 || slices.Contains(done.Changed, name(broken)) || len(done.Added)+len(done.Removed) > 0 {
		t.Errorf("%d are changed, %v added, %v removed", len(done.Changed), done.Added, done.Removed)
	}
	hasOne(t, done.Problems, x.path(1, name(broken)))
	if p := done.Problems[0]; p.Line != 2 || p.Key != "program" {
		t.Errorf("the problem is %+v, want line 2 and the key program", p)
	}
	if n := l.count("level=ERROR"); n != 1 {
		t.Errorf("%d lines in the log are errors, want 1", n)
	}
	for n := range files {
		want := "/bin/true"
		if n == broken {
			want = "/bin/false"
		}
		if d := inspected(t, b, name(n)); !slices.Equal(d.Program, []string{want}) {
			t.Errorf("%s is %v, want %s", d.Name, d.Program, want)
		}
	}
}

func TestABrokerWithoutServiceFilesHasNothingToReload(t *testing.T) {
	b := brokertest.Start(t)
	s := b.Dial(broker.Endpoint, client.Options{})
	if _, err := client.Call[broker.Reloaded](within(t, patience), s, broker.MethodReload, nil); !errors.Is(err, wire.Unsupported) {
		t.Errorf("%v, want %s", err, wire.Unsupported)
	}
}
