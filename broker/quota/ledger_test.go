package quota_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/wire"
)

// Users of the tests: the broker's own, and two others.
const (
	own     = 990
	alice   = 1000
	mallory = 1001
)

// little is a share of which a few steps reach every limit.
func little(n int) quota.Share {
	return quota.Share{
		quota.Connections: n, quota.Waiting: n, quota.Sessions: n, quota.BrokerSessions: n, quota.Registrations: n, quota.Descriptors: n, quota.Opens: n,
	}
}

// limits have others to share 3 of each, with 2 for each.
func limits() quota.Limits {
	together := little(3)
	together[quota.Opens] = 0
	return quota.Limits{Own: little(4), Others: little(2), Together: together, Users: map[uint32]quota.Share{1002: little(3)}}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The guards are the comparison with a user's share in fits, the one with what all others have together, and what sets root and the broker's user apart from these.
func TestARefusalSaysWhoHasHowMuchOfWhatAndTheLimit(t *testing.T) {
	for _, c := range []struct {
		name    string
		charged []uint32 // once each
		uid     uint32
		want    []string // of the text; nil: it is charged
	}{
		{"the first", nil, mallory, nil},
		{"the last of a user's", []uint32{mallory}, mallory, nil},
		{"one more than a user's", []uint32{mallory, mallory}, mallory, []string{"uid 1001", "has 2", "limit is 2"}},
		{"another user's", []uint32{mallory, mallory}, alice, nil},
		{"one more than all others'", []uint32{mallory, mallory, alice}, alice, []string{"all users but root", "have 3", "limit is 3"}},
		{"a user with a share of its own", []uint32{1002, 1002}, 1002, nil},
		{"one more than that", []uint32{1002, 1002, 1002}, 1002, []string{"uid 1002", "has 3", "limit is 3"}},
		{"root, when others have all", []uint32{mallory, mallory, alice}, 0, nil},
		{"the broker's user, when others have all", []uint32{mallory, mallory, alice}, own, nil},
		{"one more than root's", []uint32{0, 0, 0, 0}, 0, []string{"uid 0", "has 4", "limit is 4"}},
		{"the broker's user, when root has all", []uint32{0, 0, 0, 0}, own, nil},
		{"others, when root has all", []uint32{0, 0, 0, 0}, alice, nil},
	} {
		for _, k := range quota.Kinds() {
			if k == quota.Opens {
				continue
			}
			l := quota.NewLedger(own, limits())
			for _, uid := range c.charged {
				must(t, l.Charge(uid, k))
			}
			err := l.Charge(c.uid, k)
			if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, wire.OverQuota) {
				t.Errorf("%s, %v: %v", c.name, k, err)
			}
			for _, part := range append(c.want, k.String()) {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("%s, %v: %q does not say %q", c.name, k, err, part)
				}
			}
		}
	}
}

// The guard is that all kinds are looked at before one is charged.
func TestWhatIsRefusedInPartIsNotCharged(t *testing.T) {
	l := quota.NewLedger(own, limits())
	must(t, l.Charge(alice, quota.Descriptors), l.Charge(alice, quota.Descriptors))
	if err := l.Charge(alice, quota.Sessions, quota.Descriptors); !errors.Is(err, wire.OverQuota) {
		t.Errorf("%v, want %s", err, wire.OverQuota)
	}
	if use := l.Use(alice, quota.Sessions); use != 0 {
		t.Errorf("%d sessions are charged", use)
	}
}

// The guard is the removal of accounts in Discharge and in sweepLocked: a user who can have uids by the thousand must not have the broker remember them.
func TestWhoHasNothingIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.NewLedger(own, quota.Defaults())
		for uid := uint32(5000); uid < 7000; uid++ {
			must(t, l.Charge(uid, quota.Sessions))
			l.Discharge(uid, quota.Sessions)
		}
		if n := l.Accounts(); n != 0 {
			t.Errorf("%d accounts, want none: nobody has anything", n)
		}
		for uid := uint32(5000); uid < 7000; uid++ {
			must(t, l.Charge(uid, quota.Opens, quota.Connections))
			l.Discharge(uid, quota.Connections)
		}
		time.Sleep(time.Minute)
		must(t, l.Charge(alice, quota.Connections))
		if n := l.Accounts(); n != 1 {
			t.Errorf("%d accounts, want that of one", n)
		}
	})
}

// The guards are what Charge adds to an account's full for Opens, and that fits compares it with the bucket's depth.
func TestABucketLetsABurstThroughAndThenItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, burst = 100, 200
		all := limits()
		all.Others[quota.Opens] = rate
		l := quota.NewLedger(own, all)
		open := func() error { return l.Charge(mallory, quota.Opens) }
		for n := range burst {
			if err := open(); err != nil {
				t.Fatalf("open %d of a burst: %v", n+1, err)
			}
		}
		err := open()
		e := wire.AsError(err)
		if err == nil {
			t.Fatal("one more is taken")
		}
		if e.Code != wire.OverQuota || e.Retry <= 0 || e.Retry > time.Second/rate || !strings.Contains(e.Text, "uid 1001") || !strings.Contains(e.Text, "100") {
			t.Fatalf("one more: %v, asked again after %v", err, e.Retry)
		}
		must(t, l.Charge(alice, quota.Opens)) // another's bucket is another
		time.Sleep(e.Retry)
		if must(t, open()); open() == nil {
			t.Error("two opens in the time of one")
		}
		passed := 0
		for range 10 * rate { // for 10 s, each 10 ms ten times
			time.Sleep(time.Second / rate)
			for range 10 {
				if open() == nil {
					passed++
				}
			}
		}
		if passed != 10*rate {
			t.Errorf("%d opens in 10 s, want %d", passed, 10*rate)
		}
		time.Sleep(time.Hour)
		for passed = 0; open() == nil; passed++ {
		}
		if passed != burst {
			t.Errorf("a burst of %d after a rest, want %d: a bucket holds no more", passed, burst)
		}
	})
}

func TestARateOf0IsNoLimit(t *testing.T) {
	all := limits()
	all.Own[quota.Opens] = 0
	l := quota.NewLedger(own, all)
	for range 100_000 {
		must(t, l.Charge(own, quota.Opens))
	}
}

func TestOtherLimitsHoldAtOnceAndTakeNothingAway(t *testing.T) {
	l := quota.NewLedger(own, limits())
	must(t, l.Charge(alice, quota.Sessions), l.Charge(alice, quota.Sessions))
	less := limits()
	less.Others = little(1)
	l.Limit(less)
	if err := l.Charge(alice, quota.Sessions); err == nil || !strings.Contains(err.Error(), "has 2 sessions, and its limit is 1") {
		t.Errorf("%v, want the use and the limit", err)
	}
	l.Discharge(alice, quota.Sessions, quota.Sessions)
	must(t, l.Charge(alice, quota.Sessions))
	l.Note(alice, quota.Sessions)
	if use := l.Use(alice, quota.Sessions); use != 2 {
		t.Errorf("%d sessions, want the one that was there already, too", use)
	}
}

func TestManyAtOnceGetNoMoreThanTheLimitAndLeaveNothing(t *testing.T) {
	l := quota.NewLedger(own, limits())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				if l.Charge(mallory, quota.Sessions, quota.Descriptors) != nil {
					continue
				}
				if use := l.Use(mallory, quota.Sessions); use > 2 {
					t.Errorf("%d sessions, and the limit is 2", use)
				}
				l.Discharge(mallory, quota.Descriptors)
				l.Discharge(mallory, quota.Sessions)
			}
		})
	}
	all.Wait()
	if n := l.Accounts(); n != 0 {
		t.Errorf("%d accounts are left", n)
	}
}

func TestAChargeAllocatesNothing(t *testing.T) {
	l := quota.NewLedger(own, quota.Defaults())
	must(t, l.Charge(own, quota.Sessions))
	cost := testing.AllocsPerRun(1000, func() {
		if l.Charge(own, quota.Opens, quota.Connections) == nil {
			l.Discharge(own, quota.Connections)
		}
	})
	if cost != 0 {
		t.Errorf("%v allocations", cost)
	}
}

// The guard is Within: what others can hold at once of the broker's descriptors leaves half of these.
func TestOthersLeaveHalfOfTheDescriptors(t *testing.T) {
	for _, files := range []int{64, 256, 1024, 20_000} {
		all := quota.Defaults().Within(files)
		held := 2 * (all.Together[quota.Connections] + all.Together[quota.Waiting] + all.Together[quota.BrokerSessions])
		if held > files/2 || all.Others[quota.Connections] < 2 || all.Own[quota.Connections] <= all.Others[quota.Connections] {
			t.Errorf("of %d descriptors others hold %d; one of them has %v, root %v", files, held, all.Others, all.Own)
		}
	}
	if all := quota.Defaults().Within(20_000); all.Others != quota.Defaults().Others {
		t.Errorf("%v with 20,000 descriptors, want the defaults", all.Others)
	}
}

func BenchmarkCharge(b *testing.B) {
	l := quota.NewLedger(own, quota.Defaults())
	b.ReportAllocs()
	for b.Loop() {
		if l.Charge(own, quota.Sessions, quota.Descriptors) == nil {
			l.Discharge(own, quota.Descriptors)
			l.Discharge(own, quota.Sessions)
		}
	}
}
