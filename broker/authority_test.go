package broker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A wish is what a process is told to ask of a broker.
type wish struct {
	Open     string // an endpoint; the session is kept
	Register string // a service, with its one endpoint of that name; it is let go again
	Besides  string // one more endpoint that is registered
	Method   string // of the broker's own endpoint
	Service  string // the request's
	ID       string // likewise, of a session
}

// A granted is what came of it.
type granted struct {
	Code wire.Code // empty: it was done
	Text string
	ID   string   // of the session that was opened
	Seen []string // the sessions, or the services, that were listed
	Last []string // the services whose last exit was told
}

// askAsTold does what it is told, line by line.
func askAsTold() {
	var kept []*client.Session
	answers := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var w wish
		fail(json.Unmarshal(lines.Bytes(), &w))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		g, s, err := w.ask(ctx)
		cancel()
		if s != nil {
			kept = append(kept, s)
		}
		if err != nil {
			g.Code, g.Text = wire.CodeOf(err), err.Error()
		}
		fail(answers.Encode(g))
	}
	for _, s := range kept {
		s.Close()
	}
}

func (w wish) ask(ctx context.Context) (g granted, kept *client.Session, err error) {
	switch {
	case w.Open != "":
		kept, err = client.Dial(ctx, w.Open, client.Options{})
		if err == nil {
			g.ID = kept.ID()
		}
		if err == nil && w.Open == broker.Endpoint { // once a call was answered, who asks for the session finds it
			_, err = client.Call[any](ctx, kept, broker.MethodStatus, nil)
		}
		return g, kept, err
	case w.Register != "":
		r := wire.Register{Service: w.Register, Endpoints: []string{w.Register}}
		if w.Besides != "" {
			r.Endpoints = append(r.Endpoints, w.Besides)
		}
		control, err := register(os.Getenv(socket.Variable), r)
		if err == nil {
			lose(control)
		}
		return g, nil, err
	}
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{})
	if err != nil {
		return g, nil, err
	}
	defer s.Close()
	switch w.Method {
	case broker.MethodServices:
		list, err := client.Call[broker.Services](ctx, s, w.Method, nil)
		for _, i := range list.Services {
			g.Seen = append(g.Seen, i.Name)
			if i.Last != nil {
				g.Last = append(g.Last, i.Name)
			}
		}
		return g, nil, err
	case broker.MethodSessions:
		list, err := brokertest.Sessions(ctx, s, broker.SessionsRequest{})
		for _, i := range list {
			g.Seen = append(g.Seen, i.ID)
		}
		return g, nil, err
	case broker.MethodInspect, broker.MethodClose:
		_, err = client.Call[any](ctx, s, w.Method, broker.SessionRequest{ID: w.ID})
	case broker.MethodStatus, broker.MethodReload:
		_, err = client.Call[any](ctx, s, w.Method, nil)
	case broker.MethodLogs:
		_, err = readLog(ctx, s, broker.LogsRequest{Name: w.Service})
	default:
		_, err = client.Call[any](ctx, s, w.Method, broker.ServiceRequest{Name: w.Service})
	}
	return g, nil, err
}

// An asker is a process of some user that asks a broker what it is told.
type asker struct {
	player
	uid   int
	again func() asker // another process of that user
}

// asks starts an asker of a program that others may execute.
func asks(t *testing.T, program string, at string, as syscall.Credential) asker {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &as}
	return asker{playWith(t, cmd, "asks", "", at), int(as.Uid), func() asker { return asks(t, program, at, as) }}
}

func (a asker) ask(t *testing.T, w wish) (g granted) {
	t.Helper()
	must(t, json.NewEncoder(a.in).Encode(w))
	must(t, json.Unmarshal([]byte(a.line(t)), &g))
	return g
}

// may reports whether something is done. A refusal must be not_permitted and name the rule.
func (a asker) may(t *testing.T, w wish, rule string) bool {
	t.Helper()
	g := a.ask(t, w)
	switch g.Code {
	case "":
		return true
	case wire.NotPermitted:
		for _, says := range []string{fmt.Sprintf("uid %d may not ", a.uid), "only root", rule} {
			if !strings.Contains(g.Text, says) {
				t.Errorf("%+v: the refusal %q does not say %q", w, g.Text, says)
			}
		}
	default:
		t.Errorf("%+v: %s", w, g.Text)
	}
	return false
}

// A court is a broker with two services, each with a session of root's and a failure behind it, which the one lets others use.
type court struct {
	b       *brokertest.Broker
	session map[string]string // root's, by service
}

const (
	judged = "com.example.judged"
	other  = "com.example.other"
)

// ready has both services run and have a session of root's.
func (c *court) ready(t *testing.T) {
	t.Helper()
	for _, name := range []string{judged, other} {
		open := slices.ContainsFunc(sessions(t, c.b, broker.SessionsRequest{}), func(s broker.Session) bool {
			return s.ID == c.session[name] && s.State == broker.SessionOpen
		})
		if !open {
			s, err := dial(t, c.b, name)
			must(t, err)
			t.Cleanup(func() { s.Close() })
			c.session[name] = s.ID()
			until(t, "the session is listed as open", func() bool {
				return slices.ContainsFunc(sessions(t, c.b, broker.SessionsRequest{}), func(listed broker.Session) bool {
					return listed.ID == s.ID() && listed.State == broker.SessionOpen
				})
			})
		}
	}
}

// An act is an action of the table: it reports whether it was done.
type act func(t *testing.T, c *court, a asker) bool

// onService is an act that is a command to the service that the rules are of.
func onService(method string) act {
	return func(t *testing.T, _ *court, a asker) bool {
		t.Helper()
		return a.may(t, wish{Method: method, Service: judged}, "allow.admin of "+judged+" (")
	}
}

// onSession is an act on a session of a service; of none: one's own.
func onSession(method, of string) act {
	return func(t *testing.T, c *court, a asker) bool {
		t.Helper()
		id := c.session[of]
		if of == "" {
			id = a.ask(t, wish{Open: broker.Endpoint}).ID
		}
		if method == broker.MethodSessions {
			return slices.Contains(a.ask(t, wish{Method: method}).Seen, id)
		}
		return a.may(t, wish{Method: method, ID: id}, map[string]string{judged: "allow.admin of " + judged + " (", other: "allow.admin of " + other}[of])
	}
}

// mayRegister stops a service and has a process of its own try to be its instance.
func mayRegister(t *testing.T, c *court, a asker, service string) bool {
	t.Helper()
	ask[broker.ServiceDetails](t, c.b, broker.MethodStop, broker.ServiceRequest{Name: service})
	another := a.again()
	defer another.kill()
	return another.may(t, wish{Register: service}, "allow.register of "+service+" (")
}

// acts are the actions by the names that the table has for them.
var acts = map[string]act{
	"open one of its endpoints": func(t *testing.T, _ *court, a asker) bool {
		return a.may(t, wish{Open: judged}, "allow.open of "+judged+" (")
	},
	"register as the service": func(t *testing.T, c *court, a asker) bool {
		return mayRegister(t, c, a, judged)
	},
	"see it in `service list`": func(t *testing.T, _ *court, a asker) bool {
		return slices.Contains(a.ask(t, wish{Method: broker.MethodServices}).Seen, judged)
	},
	"see in `service list` how its last instance ended": func(t *testing.T, _ *court, a asker) bool {
		return slices.Contains(a.ask(t, wish{Method: broker.MethodServices}).Last, judged)
	},
	"`service inspect`, `service why`": onService(broker.MethodService),
	"`service start`":                  onService(broker.MethodStart),
	"`service stop`":                   onService(broker.MethodStop),
	"`service restart`":                onService(broker.MethodRestart),
	"`service reset`":                  onService(broker.MethodReset),
	"`service wait`":                   onService(broker.MethodWait),
	"`service logs`":                   onService(broker.MethodLogs),
	"`service reload`": func(t *testing.T, _ *court, a asker) bool {
		return a.may(t, wish{Method: broker.MethodReload}, "reload the services")
	},
	"any of these with another service": func(t *testing.T, c *court, a asker) bool {
		rule := func(list string) string { return "allow." + list + " of " + other + " (" }
		may := map[bool]int{}
		may[a.may(t, wish{Open: other}, rule("open"))]++
		may[slices.Contains(a.ask(t, wish{Method: broker.MethodServices}).Seen, other)]++
		for _, method := range []string{
			broker.MethodService, broker.MethodStart, broker.MethodReset, broker.MethodWait, broker.MethodLogs, broker.MethodRestart, broker.MethodStop,
		} {
			may[a.may(t, wish{Method: method, Service: other}, rule("admin"))]++
		}
		may[mayRegister(t, c, a, other)]++
		if len(may) != 1 {
			t.Errorf("uid %d may do some: %v", a.uid, may)
		}
		return may[true] > 0
	},
	"see one's own sessions in `session list`": onSession(broker.MethodSessions, ""),
	"see its other sessions in `session list`": onSession(broker.MethodSessions, judged),
	"see another service's in `session list`":  onSession(broker.MethodSessions, other),
	"`session inspect` of one's own":           onSession(broker.MethodInspect, ""),
	"`session inspect` of its others":          onSession(broker.MethodInspect, judged),
	"`session inspect` of another service's":   onSession(broker.MethodInspect, other),
	"`session close` of one's own":             onSession(broker.MethodClose, ""),
	"`session close` of its others":            onSession(broker.MethodClose, judged),
	"`session close` of another service's":     onSession(broker.MethodClose, other),
	"`status`":                                 func(t *testing.T, _ *court, a asker) bool { return a.may(t, wish{Method: broker.MethodStatus}, "") },
}

// authority reads the table of docs/services.md: the heads of its columns, and its rows.
func authority(t *testing.T) (columns []string, rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/services.md")
	must(t, err)
	_, table, _ := strings.Cut(string(text), "<!-- authority -->\n")
	table, _, found := strings.Cut(table, "<!-- /authority -->")
	if !found {
		t.Fatal("docs/services.md has no table of authority")
	}
	for line := range strings.Lines(strings.TrimSpace(table)) {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	if len(rows) < 3 {
		t.Fatalf("the table of authority is %q", table)
	}
	return rows[0], rows[2:]
}

func TestWhoMayDoWhatIsAsTheTableOfTheDocumentationHasIt(t *testing.T) {
	needsRoot(t)
	stranger := asStranger(t)
	rules := func(texts ...string) (list servicefile.Rules) {
		for _, text := range texts {
			r, err := servicefile.ParseRule(text)
			must(t, err)
			list = append(list, r)
		}
		return list
	}
	service := played(t, "ends", judged)
	service.Allow = servicefile.Allow{Admin: rules("uid:2001", "gid:3001"), Register: rules("uid:2002", "gid:3002"), Open: rules("uid:2003", "gid:3003")}
	c := &court{session: map[string]string{}}
	c.b = brokertest.StartWith(t, broker.Config{Load: func() ([]servicefile.Service, []*servicefile.Problem) {
		return []servicefile.Service{service, played(t, "ends", other)}, nil
	}})
	must(t, os.Chmod(filepath.Dir(c.b.Socket), 0o755))
	for _, name := range []string{judged, other} { // what is there to be told: a log, and how they have ended
		must(t, os.MkdirAll(c.b.Socket+".d", 0o700), os.WriteFile(broker.LogPath(c.b.Socket, name), []byte("said\n"), 0o600))
		endIt(t, c.b, name, ending{})
		comesTo(t, c.b, name, broker.ServiceStopped, 1)
	}
	// Who a column is of: by the uid that a rule names, and by one of the groups that another names.
	as := func(uid uint32, groups ...uint32) asker {
		return asks(t, stranger.Path, c.b.Socket, syscall.Credential{Uid: uid, Gid: uid, Groups: groups})
	}
	who := map[string][]asker{
		"root, the broker's user": {as(0)},
		"`admin`":                 {as(2001), as(2011, 3000, 3001)},
		"`register`":              {as(2002), as(2012, 3000, 3002)},
		"`open`":                  {as(2003), as(2013, 3000, 3003)},
		"everybody else":          {as(nobody, 3000)},
	}
	columns, rows := authority(t)
	if len(columns) != len(who)+1 || len(rows) != len(acts) {
		t.Errorf("the table has %d columns and %d rows, want %d and %d", len(columns), len(rows), len(who)+1, len(acts))
	}
	for _, row := range rows {
		act := acts[row[0]]
		if act == nil || len(row) != len(columns) {
			t.Errorf("row %q", row)
			continue
		}
		for n, want := range row[1:] {
			askers := who[columns[n+1]]
			if len(askers) == 0 || want != "yes" && want != "no" {
				t.Errorf("column %q of row %q: %s", columns[n+1], row[0], want)
			}
			for _, a := range askers {
				c.ready(t)
				if got := act(t, c, a); got != (want == "yes") {
					t.Errorf("uid %d (%s) may %s: %t, want %s", a.uid, columns[n+1], row[0], got, want)
				}
			}
		}
	}
}

func TestABrokerThatIsNotRootsLetsRootAndItsOwnUserDoAll(t *testing.T) {
	needsRoot(t)
	stranger := asStranger(t)
	at := brokertest.Socket(t)
	must(t, os.Chmod(filepath.Dir(at), 0o777|os.ModeSticky))
	cmd := exec.Command(stranger.Path)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 2001, Gid: 2001}}
	playWith(t, cmd, "broker", "", at).line(t)
	as := func(uid uint32) asker { return asks(t, stranger.Path, at, syscall.Credential{Uid: uid, Gid: uid}) }
	for _, uid := range []uint32{0, 2001} {
		a := as(uid)
		for _, w := range []wish{{Open: echoEndpoint}, {Method: broker.MethodService, Service: echoEndpoint}, {Method: broker.MethodStop, Service: echoEndpoint}} {
			if !a.may(t, w, "") {
				t.Errorf("uid %d may not %+v", uid, w)
			}
		}
	}
	if as(2002).may(t, wish{Register: echoEndpoint}, "root and uid 2001") { // its client's library would not trust that broker
		t.Error("another user may register the service")
	}
}

func TestAReloadChangesAtOnceWhoMayDoWhat(t *testing.T) {
	needsRoot(t)
	stranger := asStranger(t)
	x := plant(t)
	text := several(t, echoEndpoint, echoEndpoint)
	x.put(t, "echo", text)
	b := x.start(t, &log{})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	s := b.Dial(echoEndpoint, client.Options{})
	a := asks(t, stranger.Path, b.Socket, syscall.Credential{Uid: 2001, Gid: 2001})
	for _, allow := range []bool{false, true, false} {
		more := ""
		if allow {
			more = "[allow]\nopen = [\"uid:2001\"]\nadmin = [\"uid:2001\"]\n"
		}
		x.put(t, "echo", text+more)
		reload(t, b)
		for _, w := range []wish{{Open: echoEndpoint}, {Method: broker.MethodService, Service: echoEndpoint}, {Method: broker.MethodInspect, ID: s.ID()}} {
			if got := a.may(t, w, " of "+echoEndpoint); got != allow {
				t.Errorf("it may %+v: %t, want %t", w, got, allow)
			}
		}
		if d := inspected(t, b, echoEndpoint); d.Pending != "" || d.Starts != 1 {
			t.Errorf("pending: %q, after %d starts", d.Pending, d.Starts)
		}
	}
	must(t, os.Remove(x.path(1, "echo")))
	x.put(t, "echo", text+"[allow]\nopen = [\"uid:2001\"]\n")
	reload(t, b)
	must(t, os.Remove(x.path(1, "echo")))
	reload(t, b)
	if !a.may(t, wish{Open: echoEndpoint}, "") {
		t.Error("who might open what is removed may not while it runs")
	}
}
