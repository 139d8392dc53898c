package servicefile_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

const fullExample = `
# Everything that there is.
name = "com.example.echo"
endpoints = ["com.example.echo", "com.example.echo.admin"]
program = ["/usr/bin/echod", "--quiet", ""]
user = "root"
group = 0
working_directory = "/var/lib/echo"
umask = "077"
nice = -5
run_at_load = true
keep_alive = "on_failure"
throttle_interval = "30s"
start_timeout = "1m30s"
stop_timeout = "500ms"
idle_exit = "10m"
hang_timeout = "30s"
stdout = "/var/log/echo.log"
stderr = "inherit"
environment = { LANG = "C.UTF-8", "A.B" = "" }

[limits]
nofile = "1024:4096"
core = "unlimited"
nproc = 64
stack = "8388608:unlimited"

[allow]
open = ["any"]
register = ["uid:5", "gid:7"]
admin = ["user:root", "group:root"]
`

func TestAServiceFileSaysAllOfAService(t *testing.T) {
	path := put(t, filepath.Join(t.TempDir(), "echo.toml"), fullExample)
	got, problems := servicefile.Read(path)
	if len(problems) > 0 {
		t.Fatal(texts(problems))
	}
	want := servicefile.Service{
		Name:             "com.example.echo",
		Endpoints:        []string{"com.example.echo", "com.example.echo.admin"},
		Program:          []string{"/usr/bin/echod", "--quiet", ""},
		Environment:      map[string]string{"LANG": "C.UTF-8", "A.B": ""},
		User:             "root",
		Group:            "0",
		WorkingDirectory: "/var/lib/echo",
		Umask:            0o077,
		Nice:             -5,
		Limits: map[string]servicefile.Limit{
			"nofile": {Soft: 1024, Hard: 4096},
			"core":   {Soft: servicefile.Unlimited, Hard: servicefile.Unlimited},
			"nproc":  {Soft: 64, Hard: 64},
			"stack":  {Soft: 8388608, Hard: servicefile.Unlimited},
		},
		RunAtLoad:        true,
		KeepAlive:        servicefile.OnFailure,
		ThrottleInterval: 30 * time.Second,
		StartTimeout:     90 * time.Second,
		StopTimeout:      500 * time.Millisecond,
		IdleExit:         10 * time.Minute,
		HangTimeout:      30 * time.Second,
		Stdout:           "/var/log/echo.log",
		Stderr:           servicefile.Inherit,
		Allow: servicefile.Allow{
			Open:     rules(t, "any"),
			Register: rules(t, "uid:5", "gid:7"),
			Admin:    rules(t, "user:root", "group:root"),
		},
		File: path,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	fields := reflect.ValueOf(want)
	for i := range fields.NumField() {
		if fields.Field(i).IsZero() {
			t.Errorf("the example does not say %s", fields.Type().Field(i).Name)
		}
	}
}

func TestWhatAFileDoesNotSayHasItsDefault(t *testing.T) {
	path := put(t, filepath.Join(t.TempDir(), "a.toml"), `name = "a"`)
	got, problems := servicefile.Read(path)
	want := servicefile.Service{
		Name: "a", Endpoints: []string{"a"}, WorkingDirectory: "/", Umask: 0o022, File: path,
		ThrottleInterval: 10 * time.Second, StartTimeout: 10 * time.Second, StopTimeout: 20 * time.Second,
	}
	if len(problems) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, texts(problems), want)
	}
	if again := got.WithDefaults(); !reflect.DeepEqual(again, want) {
		t.Errorf("with defaults once more: %+v", again)
	}
	if made := (servicefile.Service{Name: "a", File: path}).WithDefaults(); !reflect.DeepEqual(made, want) {
		t.Errorf("made in Go: %+v", made)
	}
}

func TestEveryGoodValueIsTaken(t *testing.T) {
	tests := []struct {
		text string
		want func(*servicefile.Service)
	}{
		{`endpoints = ["b"]`, func(s *servicefile.Service) { s.Endpoints = []string{"b"} }},
		{`endpoints = ["` + strings.Repeat("e", wire.MaxEndpoint) + `"]`, func(s *servicefile.Service) { s.Endpoints = []string{strings.Repeat("e", wire.MaxEndpoint)} }},
		{`environment.A = "1"`, func(s *servicefile.Service) { s.Environment = map[string]string{"A": "1"} }},
		{"[environment]\nFAIRLEADER = '='", func(s *servicefile.Service) { s.Environment = map[string]string{"FAIRLEADER": "="} }},
		{"[environment]", func(s *servicefile.Service) {}},
		{`user = 0`, func(s *servicefile.Service) { s.User = "0" }},
		{`user = "0"`, func(s *servicefile.Service) { s.User = "0" }},
		{`group = "root"`, func(s *servicefile.Service) { s.Group = "root" }},
		{`working_directory = "/tmp/"`, func(s *servicefile.Service) { s.WorkingDirectory = "/tmp/" }},
		{`umask = "7"`, func(s *servicefile.Service) { s.Umask = 0o7 }},
		{`umask = "0777"`, func(s *servicefile.Service) { s.Umask = 0o777 }},
		{`nice = 19`, func(s *servicefile.Service) { s.Nice = 19 }},
		{`nice = -20`, func(s *servicefile.Service) { s.Nice = -20 }},
		{`limits.cpu = 0`, func(s *servicefile.Service) { s.Limits = map[string]servicefile.Limit{"cpu": {}} }},
		{`limits.nofile = "1:2"`, func(s *servicefile.Service) { s.Limits = map[string]servicefile.Limit{"nofile": {Soft: 1, Hard: 2}} }},
		{`run_at_load = false`, func(s *servicefile.Service) {}},
		{`keep_alive = "never"`, func(s *servicefile.Service) {}},
		{`keep_alive = "always"`, func(s *servicefile.Service) { s.KeepAlive = servicefile.Always }},
		{`keep_alive = "on_failure"`, func(s *servicefile.Service) { s.KeepAlive = servicefile.OnFailure }},
		{`keep_alive = "on_crash"`, func(s *servicefile.Service) { s.KeepAlive = servicefile.OnCrash }},
		{`throttle_interval = "1ms"`, func(s *servicefile.Service) { s.ThrottleInterval = time.Millisecond }},
		{`start_timeout = "1h"`, func(s *servicefile.Service) { s.StartTimeout = time.Hour }},
		{`stop_timeout = "60m"`, func(s *servicefile.Service) { s.StopTimeout = time.Hour }},
		{`hang_timeout = "1h"`, func(s *servicefile.Service) { s.HangTimeout = time.Hour }},
		{`idle_exit = "24h"`, func(s *servicefile.Service) { s.IdleExit = 24 * time.Hour }},
		{"idle_exit = '0s'\nkeep_alive = 'always'", func(s *servicefile.Service) { s.KeepAlive = servicefile.Always }},
		{"idle_exit = '1s'\nkeep_alive = 'on_crash'", func(s *servicefile.Service) { s.IdleExit, s.KeepAlive = time.Second, servicefile.OnCrash }},
		{`stdout = "inherit"`, func(s *servicefile.Service) { s.Stdout = servicefile.Inherit }},
		{`stderr = "/dev/null"`, func(s *servicefile.Service) { s.Stderr = "/dev/null" }},
		{"[allow]\nopen = []", func(s *servicefile.Service) {}},
		{"allow = { open = ['any'] }", func(s *servicefile.Service) { s.Allow.Open = rules(t, "any") }},
		{"allow.admin = ['uid:0']", func(s *servicefile.Service) { s.Allow.Admin = rules(t, "uid:0") }},
		{"[allow]\nregister = ['gid:0', 'any']", func(s *servicefile.Service) { s.Allow.Register = rules(t, "gid:0", "any") }},
	}
	folder := t.TempDir()
	for i, test := range tests {
		path := put(t, filepath.Join(folder, fmt.Sprintf("%d.toml", i)), "name = 'a'\nprogram = ['/bin/a']\n"+test.text)
		want := servicefile.Service{Name: "a", Program: []string{"/bin/a"}, File: path}
		test.want(&want)
		want = want.WithDefaults()
		if word := want.KeepAlive.String(); strings.Contains(test.text, "keep_alive") && !strings.Contains(test.text, word) {
			t.Errorf("%s: keep_alive is shown as %s", test.text, word)
		}
		if got, problems := servicefile.Read(path); len(problems) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", test.text, got, texts(problems), want)
		}
	}
}

func TestEveryBrokenRuleIsTold(t *testing.T) {
	many := strings.Repeat(`"e",`, wire.MaxEndpoints+1)
	tests := []struct {
		text string // behind a line with a good name
		want []string
	}{
		// What is no TOML.
		{"program = [", []string{"2: no TOML: "}},
		{"nice = 1\nx = \"\xff\"", []string{"3: no TOML: "}},
		{"name = 'b'", []string{"2: name: no TOML: key name is already defined"}},
		{"[allow]\n[allow]", []string{"3: allow: no TOML: "}},
		{"nice = 9223372036854775808", []string{"2: no TOML: "}},
		{"'\x1b[2J' = 1", []string{"2: no TOML: "}},

		// Unknown keys.
		{"stop_timout = '1s'", []string{"2: stop_timout: unknown key: did you mean stop_timeout?"}},
		{"\n\nkeepalive = 'always'", []string{"4: keepalive: unknown key: what launchd calls keepalive is keep_alive here"}},
		{"ProgramArguments = []", []string{"2: ProgramArguments: unknown key: what launchd calls ProgramArguments is program here"}},
		{"env = {}", []string{"2: env: unknown key: did you mean environment?"}},
		{"opn = []", []string{"2: opn: unknown key: did you mean allow.open?"}},
		{"colour = 1", []string{"2: colour: unknown key"}},
		{"'allow.open' = ['any']", []string{`2: "allow.open": unknown key: did you mean allow.open?`}},
		{"\"\\u001b[2J\" = 1", []string{`2: "\x1b[2J": unknown key`}},
		{"'' = 1", []string{`2: "": unknown key`}},
		{"[allow]\nopne = ['any']", []string{"3: allow.opne: unknown key: did you mean allow.open?"}},
		{"[allow]\nopen = ['any']\nrun_at_load = true", []string{"4: allow.run_at_load: unknown key: run_at_load is no part of allow, and belongs above the first [table]"}},
		{"[service]\nname = 'b'", []string{"2: service: unknown key"}},
		{"[[service]]\nname = 'b'\n[[service]]", []string{"2: service: unknown key"}},
		{"a.b.c.d.e = 1", []string{"2: a: unknown key"}},
		{"[limits]\nnofiles = 1", []string{"3: limits.nofiles: no such resource: want one of as, core, cpu"}},
		{"[limits]\nnice = 0\nrun_at_load = true", []string{"4: limits.run_at_load: no such resource: "}},

		// Wrong types.
		{"endpoints = 'a'", []string{"2: endpoints: want an array, and this is a string"}},
		{"endpoints = [\n 'b',\n 3,\n]", []string{"4: endpoints: want strings, and this is an integer"}},
		{"program = {}", []string{"2: program: want an array, and this is a table"}},
		{"program = ['/bin/a', ['x']]", []string{"2: program: want strings, and this is an array"}},
		{"[[program]]", []string{"2: program: want strings, and this is a table"}},
		{"environment = ['A=B']", []string{"2: environment: want a table, and this is an array"}},
		{"[environment]\nA = 'x'\nPORT = 80", []string{"4: environment.PORT: want a string, and this is an integer"}},
		{"[environment]\nrun_at_load = true", []string{"3: environment.run_at_load: want a string, and this is a boolean: run_at_load is no part of environment"}},
		{"user = 1.5", []string{"2: user: want a string, and this is a float"}},
		{"group = true", []string{"2: group: want a string, and this is a boolean"}},
		{"working_directory = 1979-05-27", []string{"2: working_directory: want a string, and this is a date or a time"}},
		{"umask = 22", []string{`2: umask: want a string of octal digits, as "022"`}},
		{"nice = '5'", []string{"2: nice: want an integer, and this is a string"}},
		{"nice = 5.0", []string{"2: nice: want an integer, and this is a float"}},
		{"limits = 5", []string{"2: limits: want a table, and this is an integer"}},
		{"limits.core = true", []string{"2: limits.core: want an integer, \"unlimited\" or \"SOFT:HARD\", and this is a boolean"}},
		{"run_at_load = 'yes'", []string{"2: run_at_load: want a boolean, and this is a string"}},
		{"keep_alive = true", []string{`2: keep_alive: want "never" or "always" or "on_failure" or "on_crash"`}},
		{"throttle_interval = 10", []string{`2: throttle_interval: 10 has no unit: write "10s" for seconds`}},
		{"start_timeout = 2.5", []string{"2: start_timeout: want a string, and this is a float"}},
		{"stdout = false", []string{"2: stdout: want a string, and this is a boolean"}},
		{"stderr = []", []string{"2: stderr: want a string, and this is an array"}},
		{"allow = 'any'", []string{"2: allow: want a table, and this is a string"}},
		{"[[allow]]\nopen = []", []string{"2: allow: want a table, and this is an array"}},
		{"[allow]\nopen = 'any'", []string{"3: allow.open: want an array, and this is a string"}},
		{"[allow]\nadmin = [0]", []string{"3: allow.admin: want strings, and this is an integer"}},
		{"[allow]\nregister.any = true", []string{"3: allow.register: want an array, and this is a table"}},

		// Bad values.
		{"endpoints = []", []string{"2: endpoints: is empty"}},
		{"endpoints = ['a b']", []string{`2: endpoints: "a b": want letters`}},
		{"endpoints = ['a',\n'']", []string{"3: endpoints: of 0 bytes, want 1 to 128"}},
		{"endpoints = ['b',\n'a',\n'b']", []string{"4: endpoints: b is there twice"}},
		{"endpoints = [" + many + "]", []string{"2: endpoints: 65 endpoints: a service has at most 64"}},
		{"endpoints = ['" + brokerEndpoint + "']", []string{"2: endpoints: fairlead.broker is the broker's own"}},
		{"program = []", []string{"2: program: is empty"}},
		{"program = ['true']", []string{`2: program: "true": the program is an absolute path`}},
		{"program = ['']", []string{`2: program: "": the program is an absolute path`}},
		{"program = ['/bin/a',\n\"a\\u0000b\"]", []string{"3: program: NUL in an argument"}},
		{"[environment]\n'A=B' = 'x'", []string{`3: environment."A=B": no name of a variable`}},
		{"[environment]\n'' = 'x'", []string{`3: environment."": no name of a variable`}},
		{"[environment]\nA = 'x'\nFAIRLEAD_SOCKET = 'x'", []string{"4: environment.FAIRLEAD_SOCKET: what begins with FAIRLEAD_ is the broker's to set"}},
		{"[environment]\nA = \"\\u0000\"", []string{"3: environment.A: NUL in a value"}},
		{"user = 'no-such-user'", []string{"2: user: the system knows no user no-such-user"}},
		{"user = 4000000000", []string{"2: user: the system knows no user 4000000000"}},
		{"user = -1", []string{"2: user: the system knows no user -1"}},
		{"user = \"root\\u0000\"", []string{`2: user: "root\x00" is no name and no number of a user or group`}},
		{"user = ''", []string{"2: user: is empty"}},
		{"group = 'no-such-group'", []string{"2: group: the system knows no group no-such-group"}},
		{"group = 4000000000", []string{"2: group: the system knows no group 4000000000"}},
		{"working_directory = 'tmp'", []string{`2: working_directory: "tmp": want an absolute path`}},
		{"working_directory = ''", []string{"2: working_directory: is empty"}},
		{"umask = '8'", []string{"2: umask: want a string of octal digits"}},
		{"umask = '0o22'", []string{"2: umask: want a string of octal digits"}},
		{"umask = ''", []string{"2: umask: want a string of octal digits"}},
		{"umask = '1000'", []string{"2: umask: 01000: a umask is at most 0777"}},
		{"umask = '000'", []string{"2: umask: want 001 to 777"}},
		{"nice = 20", []string{"2: nice: 20: want -20 to 19"}},
		{"nice = -9223372036854775808", []string{"2: nice: -9223372036854775808: want -20 to 19"}},
		{"limits.cpu = -1", []string{`2: limits.cpu: "-1": want a number from 0 on`}},
		{"limits.cpu = ''", []string{`2: limits.cpu: "": want a number from 0 on`}},
		{"limits.cpu = '1:2:3'", []string{`2: limits.cpu: "1:2:3": want a number from 0 on`}},
		{"limits.cpu = '18446744073709551615'", []string{"2: limits.cpu: \"18446744073709551615\": want a number"}},
		{"limits.cpu = '2:1'", []string{"2: limits.cpu: 2:1: the soft limit is above the hard one"}},
		{"limits.cpu = 'unlimited:1'", []string{"2: limits.cpu: unlimited:1: the soft limit is above the hard one"}},
		{"limits.nofile = 'unlimited'", []string{"2: limits.nofile: unlimited: the kernel has no unlimited nofile"}},
		{"limits.rss = 1", []string{"2: limits.rss: no such resource"}},
		{"keep_alive = 'sometimes'", []string{`2: keep_alive: want "never" or`}},
		{"throttle_interval = '0s'", []string{"2: throttle_interval: must be more than 0: a program that ends at once"}},
		{"throttle_interval = '1h1s'", []string{"2: throttle_interval: 1h0m1s: at most 1h"}},
		{"start_timeout = '0s'", []string{"2: start_timeout: must be more than 0: no instance registers in no time"}},
		{"start_timeout = '-1s'", []string{"2: start_timeout: -1s: a duration is not negative"}},
		{"start_timeout = '61m'", []string{"2: start_timeout: 1h1m0s: at most 1h"}},
		{"stop_timeout = '0'", []string{"2: stop_timeout: must be more than 0: an instance that does not stop must be killed some time"}},
		{"stop_timeout = '20'", []string{`2: stop_timeout: "20" has no unit: write "20s" for seconds`}},
		{"stop_timeout = 'soon'", []string{`2: stop_timeout: "soon": want a number and its unit`}},
		{"stop_timeout = '-1ns'", []string{"2: stop_timeout: -1ns: a duration is not negative"}},
		{"stop_timeout = '2h'", []string{"2: stop_timeout: 2h0m0s: at most 1h"}},
		{"idle_exit = ''", []string{"2: idle_exit: is empty"}},
		{"program = ['/a']\nidle_exit = '25h'", []string{"3: idle_exit: 25h0m0s: at most 24h"}},
		{"program = ['/a']\nidle_exit = '-1s'", []string{"3: idle_exit: -1s: a duration is not negative"}},
		{"stdout = 'log'", []string{`2: stdout: "log": want an absolute path or "inherit"`}},
		{"stderr = \"/a\\u0000\"", []string{`2: stderr: "/a\x00": want an absolute path or "inherit"`}},
		{"[allow]\nopen = [\n'any',\n'root']", []string{`5: allow.open: "root": want "uid:N", "gid:N", "user:NAME", "group:NAME" or "any"`}},

		// Keys that do not go together.
		{"run_at_load = true", []string{"2: run_at_load: needs a program"}},
		{"keep_alive = 'on_crash'", []string{"2: keep_alive: needs a program"}},
		{"hang_timeout = '999ms'", []string{"2: hang_timeout: 999ms: at least 1s, or a machine that is loaded is taken for a hang"}},
		{"idle_exit = '1s'", []string{"2: idle_exit: needs a program"}},
		{"program = ['/a']\nkeep_alive = 'always'\nidle_exit = '1s'", []string{`4: idle_exit: does not go with keep_alive = "always"`}},

		// Several at once, and none that only follows from another.
		{"stop_timeout = 1\nx = 1\nnice = 99\n[allow]\nopen = ['uid:x', 'gid:y']\nadmin = [1]", []string{
			"2: stop_timeout: 1 has no unit", "3: x: unknown key", "4: nice: 99: want", `6: allow.open: "x": want a number`, `6: allow.open: "y": want a number`,
			"7: allow.admin: want strings",
		}},
		{"endpoints = ['a b', 'c d']\nprogram = ['a']", []string{`2: endpoints: "a b"`, `2: endpoints: "c d"`, `3: program: "a"`}},
		{"program = 'a'\nrun_at_load = true\nkeep_alive = 'always'\nidle_exit = '1s'", []string{"2: program: want an array", "5: idle_exit: does not go with"}},
		{"program = ['/a']\nkeep_alive = 1\nidle_exit = '1s'", []string{"3: keep_alive: want"}},
	}
	folder := t.TempDir()
	for i, test := range tests {
		path := put(t, filepath.Join(folder, fmt.Sprintf("%d.toml", i)), "name = 'a'\n"+test.text)
		check(t, test.text, path, test.want)
	}
}

func TestProblemsWithoutEndAreCounted(t *testing.T) {
	path := put(t, filepath.Join(t.TempDir(), "a.toml"), "name = 'a'\nendpoints = ["+strings.Repeat("1,\n", 1000)+"]")
	_, problems := servicefile.Read(path)
	if len(problems) != 101 || problems[99].Line != 101 || problems[100].Error() != path+": and 900 more problems" {
		t.Errorf("%d problems: %q", len(problems), texts(problems))
	}
}

func TestAServiceFileNamesItsService(t *testing.T) {
	tests := []struct {
		text string
		want []string
	}{
		{"# nothing", []string{"name: is missing"}},
		{"program = ['/a']\nnice = 77", []string{"name: is missing", "2: nice: 77"}},
		{"\nname = 1", []string{"2: name: want a string, and this is an integer"}},
		{"name = ''", []string{"1: name: is empty"}},
		{"name = 'a/b'", []string{`1: name: "a/b": want letters`}},
		{"name = '" + strings.Repeat("n", wire.MaxEndpoint+1) + "'", []string{"1: name: of 129 bytes, want 1 to 128"}},
		{"name = '" + brokerEndpoint + "'", []string{"1: name: fairlead.broker is the broker's own"}},
		{"name = 'a.'\nendpoints = ['b.']", []string{`1: name: "a."`, `2: endpoints: "b."`}},
	}
	folder := t.TempDir()
	for i, test := range tests {
		path := put(t, filepath.Join(folder, fmt.Sprintf("%d.toml", i)), test.text)
		check(t, test.text, path, test.want)
	}
}

// check reads a file that has these problems and no others, by the beginnings of their texts behind the file.
func check(t *testing.T, text, path string, want []string) {
	t.Helper()
	s, problems := servicefile.Read(path)
	if !reflect.DeepEqual(s, servicefile.Service{}) {
		t.Errorf("%q: a file with a problem made a service: %+v", text, s)
	}
	got := texts(problems)
	good := len(got) == len(want)
	for i := 0; good && i < len(want); i++ {
		rest, ok := strings.CutPrefix(got[i], path+":")
		good = ok && strings.HasPrefix(strings.TrimPrefix(rest, " "), want[i])
	}
	if !good {
		t.Errorf("%q:\ngot  %q\nwant %q", text, got, want)
	}
	for _, p := range problems {
		if !errors.Is(p, wire.Malformed) || p.File != path || strings.ContainsAny(p.Error(), "\n\x1b\x00") {
			t.Errorf("%q: %#v", text, p)
		}
	}
}

func TestAServiceMadeInGoIsHeldAgainstTheSameRules(t *testing.T) {
	good := servicefile.Service{Name: "a", Program: []string{"/bin/a"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	tests := []struct {
		change func(*servicefile.Service)
		want   string
	}{
		{func(s *servicefile.Service) { s.Name = "" }, `service "": name: of 0 bytes, want 1 to 128 (malformed)`},
		{func(s *servicefile.Service) { s.Program[0] = "a" }, `service "a": program: "a": the program is an absolute path, as PATH is not searched (malformed)`},
		{func(s *servicefile.Service) { s.KeepAlive = servicefile.OnCrash + 1 }, `service "a": keep_alive: 4: want one of never, always, on_failure, on_crash (malformed)`},
		{func(s *servicefile.Service) { s.Umask, s.StopTimeout = 0o1000, -1 }, `service "a": umask: 01000: a umask is at most 0777; stop_timeout: -1ns: a duration is not negative (malformed)`},
		{func(s *servicefile.Service) { s.Limits = map[string]servicefile.Limit{"x": {}} }, `service "a": limits.x: no such resource: want one of as, core, cpu, data, fsize, ` +
			`memlock, msgqueue, nice, nofile, nproc, rtprio, rttime, sigpending, stack (malformed)`},
	}
	for _, test := range tests {
		s := good
		s.Program = []string{"/bin/a"}
		test.change(&s)
		if err := s.Validate(); !errors.Is(err, wire.Malformed) || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}
