package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// runAs is run as another user.
func runAs(t *testing.T, uid uint32, as string, args ...string) *child {
	t.Helper()
	return runIn(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, as, args...)
}

// A user is a process of some uid that holds a lease.
type user struct {
	*child
	uid      uint32
	hostname string
	lease    string
}

func TestEverybodySeesTheLeasesOfTheirOwnUserAndOperatorsSeeAll(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other users")
	}
	const own, one, other = 65531, 65532, 65533 // a service's, and two users'
	for _, test := range []struct {
		name      string
		service   uint32
		operators []uint32
		rule      string
	}{
		{"of root", 0, []uint32{0}, "only root sees"},
		{"of another", own, []uint32{0, own}, fmt.Sprintf("only root and uid %d see", own)},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			dir := folder(t)
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			runAs(t, test.service, "service", dir+"/s", dir+"/state", "default=10.9.0.0/24")
			if err := os.Chmod(dir+"/s", 0o777); err != nil {
				t.Fatal(err)
			}
			var users []user
			for i, uid := range []uint32{0, own, one, one, other} {
				u := user{child: runAs(t, uid, "holder", dir+"/s"), uid: uid, hostname: fmt.Sprintf("host-%d", i)}
				u.lease = u.allocate(order{Hostname: u.hostname, Witness: u.linger("linger").PID()}).Lease
				users = append(users, u)
			}
			last := users[len(users)-1]
			for _, u := range users {
				operator := slices.Contains(test.operators, u.uid)
				u.seesWhatItMay(t, users, operator, test.rule)
			}
			last.kill() // its lease is dying, and is still its user's
			for _, u := range users[:len(users)-1] {
				seen, may := slices.Contains(u.order(order{Do: "list"}).Leases, last.lease), slices.Contains(test.operators, u.uid)
				if seen != may {
					t.Errorf("uid %d is shown a dying lease of uid %d: %t, want %t", u.uid, last.uid, seen, may)
				}
			}
		})
	}
}

func TestNobodyWithdrawsTheLeasesOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other users")
	}
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	for _, path := range []string{s.path, filepath.Dir(s.path)} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	const token = "0123456789abcdef"
	one := runAs(t, 65532, "holder", s.path)
	lease := one.order(order{Do: "ask", Token: token, Witness: one.linger("linger").PID()}).Lease
	one.kill() // its lease is dying
	operator := open(t, s.path)
	for _, test := range []struct {
		uid  uint32
		want int // leases that are left
	}{{65533, 1}, {0, 1}, {65532, 0}} {
		c := runAs(t, test.uid, "holder", s.path)
		if a := c.order(order{Do: "ask", Withdraw: []string{token}}); a.Error != nil {
			t.Fatal(a.Error)
		}
		left := 0
		for _, l := range list(t, operator) {
			if l.ID == lease {
				left++
			}
		}
		if left != test.want {
			t.Errorf("uid %d withdraws it: %d are left, want %d", test.uid, left, test.want)
		}
	}
}

// seesWhatItMay checks what a user is answered about the leases of all, also those that it may not see.
func (u user) seesWhatItMay(t *testing.T, all []user, operator bool, rule string) {
	t.Helper()
	var want []string
	for _, of := range all {
		may := operator || of.uid == u.uid
		if may {
			want = append(want, of.lease)
		}
		looked := u.order(order{Do: "lookup", Hostname: of.hostname})
		if may && (looked.Error != nil || !slices.Equal(looked.Leases, []string{of.lease})) {
			t.Errorf("uid %d looks a host of uid %d up: %v", u.uid, of.uid, looked.Error)
		}
		answers := map[string]*wire.Error{"lookup": looked.Error}
		if inspected := u.order(order{Do: "inspect", Lease: of.lease}); may {
			if inspected.Error != nil || !slices.Equal(inspected.Leases, []string{of.lease}) {
				t.Errorf("uid %d inspects a lease of uid %d: %v", u.uid, of.uid, inspected.Error)
			}
		} else {
			answers["inspect"] = inspected.Error
		}
		if of.child != u.child {
			answers["release"] = u.order(order{Do: "release", Lease: of.lease}).Error
			answers["witness"] = u.order(order{Do: "witness", Lease: of.lease, Witness: u.lingers[0].PID()}).Error
		}
		for method, err := range answers {
			switch {
			case may && method == "lookup":
			case may && (err == nil || err.Code != wire.NotFound):
				t.Errorf("uid %d, %s of a lease of uid %d and another session: %v, want %s", u.uid, method, of.uid, err, wire.NotFound)
			case !may && (err == nil || err.Code != wire.NotPermitted || !strings.Contains(err.Text, rule)):
				t.Errorf("uid %d, %s of a lease of uid %d: %v, want %s and %q", u.uid, method, of.uid, err, wire.NotPermitted, rule)
			}
		}
	}
	slices.Sort(want)
	for _, how := range []string{"list", "watch"} {
		listed := u.order(order{Do: how})
		slices.Sort(listed.Leases)
		if listed.Error != nil || !slices.Equal(listed.Leases, want) {
			t.Errorf("uid %d is shown by %s %v, %v, want %v", u.uid, how, listed.Leases, listed.Error, want)
		}
	}
	reload := wire.NotPermitted
	if operator {
		reload = wire.Unsupported // it may, and there is nothing to read
	}
	if e := u.order(order{Do: "reload"}).Error; e == nil || e.Code != reload {
		t.Errorf("uid %d reloads the networks: %v, want %s", u.uid, e, reload)
	}
	if e := u.order(order{Do: "count"}).Error; operator != (e == nil) || e != nil && e.Code != wire.NotPermitted {
		t.Errorf("uid %d asks for the counters: %v", u.uid, e)
	}
	if e := u.order(order{Do: "lookup", Hostname: "nobody"}).Error; e == nil || e.Code != wire.NotFound {
		t.Errorf("uid %d looks up what nobody has: %v, want %s", u.uid, e, wire.NotFound)
	}
}
