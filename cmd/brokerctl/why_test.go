package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestWhySaysWhatCausedTheLastStartAndWhyNothingRuns(t *testing.T) {
	at := func(d time.Duration) wire.Time { return wire.At(time.Now().Add(d)) }
	due := at(time.Hour)
	client := &wire.Process{PID: 4711, UID: 1000, Program: "python3"}
	const ago = -2 * time.Minute
	program := []string{"/usr/bin/echod"}
	for name, test := range map[string]struct {
		info broker.ServiceInfo
		d    broker.ServiceDetails
		want string
	}{
		"an open": {
			broker.ServiceInfo{State: broker.ServiceRunning, Instance: 3, PID: 12, StartedAt: at(ago), Last: &broker.Exit{Instance: 2, Status: "exit status 0"}},
			broker.ServiceDetails{Cause: &broker.Cause{Kind: broker.CauseOpen, Endpoint: "com.example.echo.admin", Client: client}},
			"com.example.echo (instance 3) was started 2m ago: client 4711 (python3, uid 1000) opened com.example.echo.admin.\n",
		},
		"a command": {
			broker.ServiceInfo{State: broker.ServiceRunning, Instance: 3, PID: 12, StartedAt: at(ago), Pending: broker.PendingRemoval},
			broker.ServiceDetails{Cause: &broker.Cause{Kind: broker.CauseCommand, Client: &wire.Process{PID: 5}}},
			"com.example.echo (instance 3) was started 2m ago: a command of process 5 (uid 0).\n" +
				"Its service file is gone, and so is the service when its instance has ended.\n",
		},
		"run_at_load": {
			broker.ServiceInfo{State: broker.ServiceRunning, Instance: 1, PID: 12, StartedAt: at(ago)},
			broker.ServiceDetails{RunAtLoad: true, Cause: &broker.Cause{Kind: broker.CauseLoad}},
			"com.example.echo (instance 1) was started 2m ago: the broker has read its service file, and run_at_load is true.\n",
		},
		"keep_alive from the beginning": {
			broker.ServiceInfo{State: broker.ServiceRunning, Instance: 1, PID: 12, StartedAt: at(ago)},
			broker.ServiceDetails{KeepAlive: "always", Cause: &broker.Cause{Kind: broker.CauseLoad}},
			"com.example.echo (instance 1) was started 2m ago: the broker has read its service file, and keep_alive is always.\n",
		},
		"keep_alive": {
			broker.ServiceInfo{
				State: broker.ServiceRunning, Instance: 3, PID: 12, StartedAt: at(ago),
				Last: &broker.Exit{Instance: 2, At: at(ago), Status: "exit status 2", Stderr: []string{"panic: \x1b[31mred", "goroutine 1"}},
			},
			broker.ServiceDetails{KeepAlive: "always", Cause: &broker.Cause{Kind: broker.CauseKeepAlive}},
			"com.example.echo (instance 3) was started 2m ago: keep_alive is always, and instance 2 had ended: exit status 2.\n" +
				"Instance 2 ended 2m ago: exit status 2; the last it wrote on stderr:\n  panic: \\x1b[31mred\n  goroutine 1\n",
		},
		"one of an earlier broker": {
			broker.ServiceInfo{State: broker.ServiceRunning, Instance: 3, PID: 12, StartedAt: at(ago)},
			broker.ServiceDetails{},
			"com.example.echo (instance 3) was started 2m ago, and what caused that is not recorded.\n",
		},
		"one that has registered on its own": {
			broker.ServiceInfo{State: broker.ServiceRunning, PID: 12, StartedAt: at(ago)},
			broker.ServiceDetails{},
			"com.example.echo (pid 12) has registered on its own: the broker has not started it.\n",
		},
		"nothing wanted it": {
			broker.ServiceInfo{State: broker.ServiceStopped},
			broker.ServiceDetails{Program: program},
			"com.example.echo is stopped, as nothing has wanted it yet: the next open of com.example.echo or com.example.echo.admin starts it.\n",
		},
		"killed, as it has not registered, and in its pause": {
			broker.ServiceInfo{State: broker.ServiceStopped, DueAt: due, Last: &broker.Exit{Instance: 2, At: at(ago), Status: "signal: killed", Why: "it has not registered within 2s"}},
			broker.ServiceDetails{Program: program, KeepAlive: "never", Log: "/x"},
			"com.example.echo is stopped: the next open of com.example.echo or com.example.echo.admin starts it, not before " + due.Time().Local().Format(time.TimeOnly) +
				" (in 1h0m0s), as it has failed: 'brokerctl service start com.example.echo' waits for nothing.\n" +
				"Instance 2 ended 2m ago: signal: killed, by the broker, as it has not registered within 2s; 'brokerctl service logs com.example.echo' may say more.\n",
		},
		"a command stopped what is kept alive": {
			broker.ServiceInfo{State: broker.ServiceStopped, Last: &broker.Exit{Instance: 2, At: at(ago), Status: "exit status 0"}},
			broker.ServiceDetails{Program: program, KeepAlive: "always", Log: "/x", Stopped: &broker.Cause{Kind: broker.CauseCommand, At: at(ago), Client: client}},
			"com.example.echo was stopped 2m ago by a command of process 4711 (python3, uid 1000), and is not kept alive until something starts it: the next open of com.example.echo or com.example.echo.admin starts it.\n" +
				"Instance 2 ended 2m ago: exit status 0.\n",
		},
		"starting": {
			broker.ServiceInfo{State: broker.ServiceStarting, Instance: 4, Last: &broker.Exit{Instance: 3, At: at(ago), Status: "signal: killed"}},
			broker.ServiceDetails{Start: 10 * time.Second, Waiting: 2, Cause: &broker.Cause{Kind: broker.CauseOpen, At: at(ago), Endpoint: "com.example.echo", Client: client}},
			"com.example.echo is starting: it has not registered yet, for which it has 10s. 2 opens wait for it.\n" +
				"Instance 4 was started 2m ago: client 4711 (python3, uid 1000) opened com.example.echo.\n" +
				"Instance 3 ended 2m ago: signal: killed.\n",
		},
		"one that never registered": {
			broker.ServiceInfo{State: broker.ServiceStopped, Last: &broker.Exit{Instance: 3, At: at(ago), Status: "exit status 0", Unregistered: true}},
			broker.ServiceDetails{Program: program, KeepAlive: "never", Log: "/x.log", Cause: &broker.Cause{Kind: broker.CauseCommand, At: at(ago), Client: &wire.Process{PID: 5}}},
			"com.example.echo is stopped: the next open of com.example.echo or com.example.echo.admin starts it.\n" +
				"Instance 3 was started 2m ago: a command of process 5 (uid 0).\n" +
				"Instance 3 ended before it registered 2m ago: exit status 0; 'brokerctl service logs com.example.echo' may say more.\n",
		},
		"a long line": {
			broker.ServiceInfo{State: broker.ServiceStopped, Last: &broker.Exit{Instance: 3, At: at(ago), Status: "exit status 2", Stderr: []string{"oh", strings.Repeat("s", 1800), "no"}}},
			broker.ServiceDetails{Program: program, KeepAlive: "never", Log: "/x.log"},
			"com.example.echo is stopped: the next open of com.example.echo or com.example.echo.admin starts it.\n" +
				"Instance 3 ended 2m ago: exit status 2; the last it wrote on stderr:\n  oh\n  " + strings.Repeat("s", 300) + "… (1800 bytes)\n  no\n" +
				"  Whole lines: 'brokerctl service logs com.example.echo'\n",
		},
		"stopping": {
			broker.ServiceInfo{State: broker.ServiceStopping, Instance: 4, StartedAt: at(ago)},
			broker.ServiceDetails{Stop: 20 * time.Second, Waiting: 1, Cause: &broker.Cause{Kind: broker.CauseKeepAlive}, KeepAlive: "on_failure"},
			"com.example.echo is stopping, for which it has 20s. 1 open waits for it.\n" +
				"Instance 4 was started 2m ago: keep_alive is on_failure, and the instance before had ended.\n",
		},
	} {
		d := test.d
		d.ServiceInfo = test.info
		d.Name, d.Endpoints = "com.example.echo", []string{"com.example.echo", "com.example.echo.admin"}
		if got := brokerctl.Why(d); got != test.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, test.want)
		}
	}
}

func TestWhyTellsUntilWhenAServiceIsNotStarted(t *testing.T) {
	due := time.Now().Add(time.Hour)
	d := broker.ServiceDetails{Throttle: 10 * time.Second, ServiceInfo: broker.ServiceInfo{
		Name: "com.example.echo", DueAt: wire.At(due), Last: &broker.Exit{Instance: 2, Status: "not started"},
	}}
	d.State, d.Failures = broker.ServiceWaiting, 2
	got := brokerctl.Why(d)
	for _, want := range []string{
		"waiting until " + due.Local().Format(time.TimeOnly) + " (in 1h0m0s)", "when it is started again: that is the pause after 2 quick failures in a row.\n", "Instance 2 ended: not started.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	d.Failures = 0
	if got := brokerctl.Why(d); !strings.Contains(got, "that is its throttle_interval, 10s after the last start.\n") {
		t.Error(got)
	}
	d.State = broker.ServiceSuspended
	if got := brokerctl.Why(d); !strings.Contains(got, "suspended until") || !strings.Contains(got, "'brokerctl service reset com.example.echo' lifts that.\n") {
		t.Error(got)
	}
}
