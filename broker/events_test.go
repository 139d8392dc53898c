package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A monitor is a reader of a broker's events.
type monitor struct {
	*testing.T
	stream *client.Streaming[broker.Event, struct{}]
}

// watching begins to read events.
func watching(t *testing.T, b *brokertest.Broker, r broker.MonitorRequest) monitor {
	t.Helper()
	s := b.Dial(broker.Endpoint, client.Options{Title: "monitor"})
	stream, err := client.OpenStreaming[broker.Event, struct{}](within(t, 4*patience), s, broker.MethodMonitor, r)
	must(t, err)
	t.Cleanup(func() { stream.Close() })
	return monitor{t, stream}
}

// next waits for an event.
func (m monitor) next() broker.Event {
	m.Helper()
	e, err := m.stream.Receive()
	if err != nil {
		m.Fatalf("an event: %v", err)
	}
	return e
}

// until reads events until one of a kind of a service or a session, and returns all.
func (m monitor) until(kind, of string) (all []broker.Event) {
	m.Helper()
	for {
		e := m.next()
		all = append(all, e)
		if e.Kind == kind && (e.Service == of || e.Session == of) {
			return all
		}
	}
}

// kinds are the kinds of events of a service, with the states it has come to.
func kinds(all []broker.Event, service string) (list []string) {
	for _, e := range all {
		if e.Service == service {
			list = append(list, strings.TrimSpace(e.Kind+" "+e.State))
		}
	}
	return list
}

func TestWhatHappensIsToldInItsOrderAndAgainToWhoAsksLater(t *testing.T) {
	leavesNothing(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{played(t, "ends", echoEndpoint), shell("com.example.fails", "exit 3", "")}})
	live := watching(t, b, broker.MonitorRequest{From: 1})
	s := b.Dial(echoEndpoint, client.Options{Title: "a title"})
	live.until(broker.EventSessionOpened, s.ID())
	s.Close()
	live.until(broker.EventSessionClosed, s.ID())
	ask[any](t, b, broker.MethodStop, broker.ServiceRequest{Name: echoEndpoint})
	if _, err := dial(t, b, "com.example.fails"); !errors.Is(err, wire.StartFailed) {
		t.Fatal(err)
	}
	all := watching(t, b, broker.MonitorRequest{From: 1}).until(broker.EventInstanceEnded, "com.example.fails")
	for n, e := range all {
		if e.Seq != int64(n+1) || n > 0 && e.At < all[n-1].At {
			t.Fatalf("event %d is %+v", n+1, e)
		}
	}
	want := []string{
		"service_state starting", "instance_started", "instance_registered", "service_state running", "session_opened", "session_closed",
		"service_state stopping", "instance_ended", "service_state stopped",
	}
	got := kinds(all, echoEndpoint)
	lost := slices.Index(got, broker.EventInstanceUnregistered) // beside its end
	if lost < 0 {
		t.Fatalf("of %s is told %q", echoEndpoint, got)
	}
	if got = slices.Delete(got, lost, lost+1); !slices.Equal(got, want) {
		t.Errorf("of %s is told %q, want %q", echoEndpoint, got, want)
	}
	if got, want := kinds(all, "com.example.fails"), []string{"service_state starting", "instance_started", "instance_ended"}; !slices.Equal(got, want) {
		t.Errorf("of com.example.fails is told %q, want %q", got, want)
	}
	for _, e := range all {
		if e.Service != echoEndpoint || e.Session != s.ID() {
			continue
		}
		if e.Endpoint != echoEndpoint || e.Title != "a title" || e.Instance != 1 || e.PID != s.Peer().PID || e.Client == nil || e.Client.PID != os.Getpid() {
			t.Errorf("the session is told as %+v", e)
		}
		if closed := e.Kind == broker.EventSessionClosed; closed != (e.End != nil) || closed && e.End.Code != wire.Invalid {
			t.Errorf("the session's end is %+v in %s", e.End, e.Kind)
		}
	}
	if last := all[len(all)-1]; last.Exit == nil || last.Exit.Status != "exit status 3" || last.Instance != 1 {
		t.Errorf("the failure is told as %+v", last)
	}
	live.until(broker.EventInstanceEnded, "com.example.fails") // the reader that was there from the beginning is told, too
}

func TestEventsAreAskedForByKindTimeAndNumber(t *testing.T) {
	b := brokertest.Start(t)
	b.Serve(echoServer())
	first := b.Dial(echoEndpoint, client.Options{})
	seen := watching(t, b, broker.MonitorRequest{From: 1, Kinds: []string{"session"}}).until(broker.EventSessionOpened, first.ID())
	for _, e := range seen {
		if !strings.HasPrefix(e.Kind, "session_") {
			t.Errorf("asked for sessions, told of %s", e.Kind)
		}
	}
	at := seen[len(seen)-1]
	if e := watching(t, b, broker.MonitorRequest{From: at.Seq}).next(); e.Seq != at.Seq || e.Session != first.ID() {
		t.Errorf("from %d on is told %+v", at.Seq, e)
	}
	if e := watching(t, b, broker.MonitorRequest{Since: at.At}).next(); e.Seq != at.Seq {
		t.Errorf("since %v is told %+v, want event %d", at.At.Time(), e, at.Seq)
	}
	live := watching(t, b, broker.MonitorRequest{Kinds: []string{broker.EventSessionClosed}})
	operator := b.Dial(broker.Endpoint, client.Options{})
	until(t, "the reader is there", func() bool { // its request is served beside this one
		list, err := brokertest.Sessions(within(t, patience), operator, broker.SessionsRequest{Title: "monitor"})
		must(t, err)
		in, err := client.Call[broker.Details](within(t, patience), operator, broker.MethodInspect, broker.SessionRequest{ID: list[len(list)-1].ID})
		must(t, err)
		return in.Inspection.Streams == 1
	})
	first.Close()
	if all := live.until(broker.EventSessionClosed, first.ID()); len(kinds(all, echoEndpoint)) != 1 {
		t.Errorf("of what comes is told %+v", all)
	}
	for _, test := range []struct {
		r    broker.MonitorRequest
		code wire.Code
		says string
	}{
		{broker.MonitorRequest{From: 1_000_000}, wire.NotFound, "event 999999 has not been"},
		{broker.MonitorRequest{From: -1}, wire.Malformed, "from event -1"},
		{broker.MonitorRequest{Kinds: []string{"sesion"}}, wire.Malformed, "is it session"},
		{broker.MonitorRequest{Kinds: []string{broker.EventDropped}}, wire.Malformed, "no event has the kind dropped"},
		{broker.MonitorRequest{Kinds: make([]string, 100)}, wire.Malformed, "100 kinds"},
	} {
		if _, err := watching(t, b, test.r).stream.Receive(); !errors.Is(err, test.code) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v, want %s: %s", test.r, err, test.code, test.says)
		}
	}
}

// flood has a broker tell of the ends of sessions, 100 at a time.
func flood(t *testing.T, control *session.Session, batches int) {
	t.Helper()
	now := time.Now().UnixNano()
	for range batches {
		var news wire.Sessions
		for range wire.MaxBatch {
			news.Sessions = append(news.Sessions, wire.SessionInfo{
				ID: session.NewID(), Endpoint: echoEndpoint, OpenedAt: now, ClosedAt: now, End: &wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: strings.Repeat("text ", 100)},
			})
		}
		must(t, control.Call(within(t, patience), wire.MethodSessions, news, nil))
	}
}

func TestAReaderThatStopsReadingDelaysNobodyAndIsToldHowManyEventsItMissed(t *testing.T) {
	b := brokertest.Start(t)
	control, err := register(b.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
	must(t, err)
	defer lose(control)
	stopped := watching(t, b, broker.MonitorRequest{From: 1})
	last := stopped.next().Seq
	flood(t, control, 150) // 15,000, of some 9 MB: each batch is answered while the reader does not read
	reader := watching(t, b, broker.MonitorRequest{From: 1})
	if e := reader.next(); e.Kind != broker.EventDropped || e.Dropped < 5000 || e.Seq != e.Dropped {
		t.Errorf("who comes later is told %+v first, want that 5,000 or more are dropped", e)
	}
	ended := b.Dial(broker.Endpoint, client.Options{})
	ended.Close()
	missed, markers := int64(0), 0
	for {
		e := stopped.next()
		if e.Kind == broker.EventDropped {
			markers++
			missed += e.Dropped
			if e.Seq != last+e.Dropped {
				t.Fatalf("%d events after %d are dropped, up to %d", e.Dropped, last, e.Seq)
			}
		} else if e.Seq != last+1 {
			t.Fatalf("event %d follows event %d", e.Seq, last)
		}
		last = e.Seq
		if e.Kind == broker.EventSessionClosed && e.Session == ended.ID() {
			break
		}
	}
	if markers == 0 || missed < 1000 {
		t.Errorf("%d events are dropped, in %d markers", missed, markers)
	}
}

func TestRefusalsAreEventsOfWhoWasRefusedAtALimitedRate(t *testing.T) {
	needsRoot(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{played(t, "ends", judged)}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	a := asks(t, asStranger(t).Path, b.Socket, syscall.Credential{Uid: 2001, Gid: 2001})
	const refusals = 40
	for range refusals {
		a.may(t, wish{Open: judged}, "allow.open of "+judged)
	}
	a.may(t, wish{Method: broker.MethodReload}, "")
	told, more := int64(0), int64(0)
	until(t, "all but those of the last second are told", func() bool { // the next one says how many were not
		a.may(t, wish{Open: judged}, "allow.open of "+judged)
		told, more = 0, 0
		m := watching(t, b, broker.MonitorRequest{From: 1, Kinds: []string{broker.EventDenied, "session"}})
		s := b.Dial(broker.Endpoint, client.Options{})
		for _, e := range m.until(broker.EventSessionOpened, s.ID()) {
			if e.Kind != broker.EventDenied {
				continue
			}
			told, more = told+1, more+e.More
			if e.Client == nil || e.Client.UID != 2001 || e.Client.PID != a.cmd.Process.Pid || e.Code != wire.NotPermitted || !strings.Contains(e.Text, "only root") {
				t.Fatalf("a refusal is told as %+v", e)
			}
		}
		return told+more >= refusals
	})
	if more == 0 {
		t.Errorf("%d refusals are told, and none is counted", told)
	}
}

// monitorAll prints the events that this process is told, up to the opening of a session of its own.
func monitorAll() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{})
	fail(err)
	defer s.Close()
	_, err = client.Call[any](ctx, s, broker.MethodStatus, nil)
	fail(err)
	stream, err := client.OpenStreaming[broker.Event, struct{}](ctx, s, broker.MethodMonitor, broker.MonitorRequest{From: 1})
	fail(err)
	for e, err := range stream.All() {
		fail(err)
		fail(json.NewEncoder(os.Stdout).Encode(e))
		if e.Kind == broker.EventSessionOpened && e.Session == s.ID() {
			break
		}
	}
}

func TestEverybodyIsToldOfTheirOwnAndOfTheServicesTheyAdminister(t *testing.T) {
	needsRoot(t)
	admin, err := servicefile.ParseRule("uid:2001")
	must(t, err)
	mine := played(t, "ends", judged)
	mine.Allow.Admin = servicefile.Rules{admin}
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{mine, played(t, "ends", other)}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	ids := map[string]string{}
	for _, name := range []string{judged, other} {
		s := b.Dial(name, client.Options{})
		ids[name] = s.ID()
	}
	for _, name := range []string{judged, other} {
		watching(t, b, broker.MonitorRequest{From: 1}).until(broker.EventSessionOpened, ids[name])
	}
	program := asStranger(t).Path
	for uid, administered := range map[uint32][]string{0: {judged, other}, 2001: {judged}, 2002: nil} {
		cmd := exec.Command(program)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		p := playWith(t, cmd, "monitors", "", b.Socket)
		told := map[string]bool{}
		for own := false; !own; {
			var e broker.Event
			must(t, json.Unmarshal([]byte(p.line(t)), &e))
			own = e.Client != nil && e.Client.PID == p.cmd.Process.Pid && e.Kind == broker.EventSessionOpened
			if !own && uid != 0 && !slices.Contains(administered, e.Service) {
				t.Errorf("uid %d is told of %+v", uid, e)
			}
			told[fmt.Sprint(e.Kind, " ", e.Service)] = true
		}
		for _, name := range []string{judged, other} {
			for _, kind := range []string{broker.EventSessionOpened, broker.EventServiceState, broker.EventInstanceStarted, broker.EventInstanceRegistered} {
				if want := slices.Contains(administered, name); told[kind+" "+name] != want {
					t.Errorf("uid %d is told of %s of %s: %t, want %t", uid, kind, name, !want, want)
				}
			}
		}
	}
}
