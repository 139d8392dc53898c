// Package quota counts what each user has of a broker, and refuses what is beyond a limit.
package quota

import (
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// retryAfter is what is told to who has to wait until others of the same user are done; less than a client's patience, more than a hand-over takes.
const retryAfter = 50 * time.Millisecond

// A Ledger has an account for each user who has something. Its methods may be called by several at once; none allocates for a user who has an account, or waits.
type Ledger struct {
	own   uint32 // the broker's user
	began time.Time

	mu       sync.Mutex
	limits   Limits
	accounts map[uint32]account // of root, of the broker's user, and of others
	together account            // of all others
	swept    time.Duration      // when accounts without anything were looked for last; as all times here, since began
}

// An account is what somebody has.
type account struct {
	use [Opens]int
	// full is when the bucket of Opens is full again: each open puts that off by the time in which one is earned, and it may not lie further ahead than the bucket's depth.
	full time.Duration
}

// empty reports whether an account is as a new one.
func (a *account) empty(now time.Duration) bool { return a.use == [Opens]int{} && a.full <= now }

// NewLedger returns the ledger of a broker that runs as a user.
func NewLedger(own uint32, limits Limits) *Ledger {
	return &Ledger{own: own, began: time.Now(), limits: limits, accounts: map[uint32]account{}}
}

// Limit sets other limits. Who has more than these keeps it, and gets no more.
func (l *Ledger) Limit(limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = limits
}

// Charge charges a user one of each kind, or nothing. It fails with wire.OverQuota, which says who has how much of what, and the limit; Retry is when to ask again, where
// that passes by itself.
func (l *Ledger) Charge(uid uint32, kinds ...Kind) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.began)
	a, share := l.accounts[uid], l.limits.share(uid, l.own)
	for _, k := range kinds {
		if use, retry, ok := a.fits(k, share[k], now); !ok {
			return refusal(uid, k, use, share[k], retry)
		}
		if use, retry, ok := l.together.fits(k, l.limits.Together[k], now); !ok && !l.apart(uid) {
			return refusalOfAll(k, use, l.limits.Together[k], retry)
		}
	}
	for _, k := range kinds {
		l.addLocked(uid, &a, k, share, now)
	}
	l.accounts[uid] = a
	l.sweepLocked(now)
	return nil
}

// Note charges a user one of a kind whatever the limit is: for what is there already.
func (l *Ledger) Note(uid uint32, k Kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[uid]
	l.addLocked(uid, &a, k, l.limits.share(uid, l.own), time.Since(l.began))
	l.accounts[uid] = a
}

// Discharge gives one back of each kind. Opens come back by time alone.
func (l *Ledger) Discharge(uid uint32, kinds ...Kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[uid]
	for _, k := range kinds {
		a.use[k]--
		if !l.apart(uid) {
			l.together.use[k]--
		}
	}
	if a.empty(time.Since(l.began)) {
		delete(l.accounts, uid)
	} else {
		l.accounts[uid] = a
	}
}

// Use returns how much of a kind a user has. It is not for Opens.
func (l *Ledger) Use(uid uint32, k Kind) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[uid]
	return a.use[k]
}

// apart reports whether a user is none of the others: what root and the broker's user have, nobody else can take.
func (l *Ledger) apart(uid uint32) bool { return uid == 0 || uid == l.own }

// fits reports whether an account has room for one more, and else how much it has and after how long there may be room: 0 where time alone makes none.
func (a *account) fits(k Kind, limit int, now time.Duration) (use int, retry time.Duration, ok bool) {
	if k == Opens {
		most := depth(limit)
		ahead := max(0, a.full-now) + each(limit)
		return limit, ahead - most, limit == 0 || ahead <= most
	}
	if k == Connections || k == Waiting || k == BrokerSessions || k == Descriptors {
		retry = retryAfter
	}
	return a.use[k], retry, a.use[k] < limit
}

func (l *Ledger) addLocked(uid uint32, a *account, k Kind, share Share, now time.Duration) {
	a.add(k, share[k], now)
	if !l.apart(uid) {
		l.together.add(k, l.limits.Together[k], now)
	}
}

func (a *account) add(k Kind, limit int, now time.Duration) {
	if k != Opens {
		a.use[k]++
	} else if limit > 0 {
		a.full = max(a.full, now) + each(limit)
	}
}

// each is the time in which one open is earned.
func each(limit int) time.Duration { return time.Second / time.Duration(max(1, limit)) }

// depth is how much a bucket holds, as the time in which it fills: 2 s, and at least one open.
func depth(limit int) time.Duration { return max(burst, each(limit)) }

const (
	burst      = 2 * time.Second
	sweepPause = time.Second
)

// sweepLocked removes accounts that are as new ones, from time to time: Discharge leaves those whose bucket is not full.
func (l *Ledger) sweepLocked(now time.Duration) {
	if now-l.swept < sweepPause {
		return
	}
	l.swept = now
	for uid, a := range l.accounts {
		if a.empty(now) {
			delete(l.accounts, uid)
		}
	}
}

// refusal says who has how much of what.
func refusal(uid uint32, k Kind, use, limit int, retry time.Duration) error {
	e := wire.Errorf(wire.OverQuota, "uid %d has %d %v, and its limit is %d", uid, use, k, limit)
	if k == Opens {
		e = wire.Errorf(wire.OverQuota, "uid %d has made more than %d connections a second, which is its limit", uid, limit)
	}
	e.Retry = retry
	return e
}

func refusalOfAll(k Kind, use, limit int, retry time.Duration) error {
	e := wire.Errorf(wire.OverQuota, "all users but root and the broker's own have %d %v together, and their limit is %d", use, k, limit)
	if k == Opens {
		e = wire.Errorf(wire.OverQuota, "all users but root and the broker's own have made more than %d connections a second together, which is their limit", limit)
	}
	e.Retry = retry
	return e
}
