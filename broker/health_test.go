package broker_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
)

// noon is when the tests of health begin.
var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// crash has a service fail right after a start, as soon as it may be started, and returns when that was and when it may be started next.
func crash(h *broker.Health, throttle time.Duration, now time.Time) (failed, next time.Time) {
	if next := h.Next(throttle); next.After(now) {
		now = next
	}
	h.Began(now)
	h.Ends(now, throttle, true)
	return now, h.Next(throttle)
}

func TestThePauseAfterAFailureDoublesAndFiveQuickDeathsSuspend(t *testing.T) {
	for _, test := range []struct {
		name     string
		throttle time.Duration
		pauses   []time.Duration // until it is suspended
	}{
		{"the default", 10 * time.Second, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}},
		{"a short one", time.Millisecond, []time.Duration{time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond}},
		{"a pause of 5 minutes at most", 2 * time.Minute, []time.Duration{2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute}},
		{"but never less than the throttle", time.Hour, []time.Duration{time.Hour, time.Hour, time.Hour, time.Hour}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, now := &broker.Health{}, noon
			for n, want := range test.pauses {
				var next time.Time
				now, next = crash(h, test.throttle, now)
				if got := next.Sub(now); got != want || h.IsSuspended(now) {
					t.Errorf("after %d quick deaths the pause is %v, want %v; suspended: %t", n+1, got, want, h.IsSuspended(now))
				}
			}
			for n, want := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
				now, _ = crash(h, test.throttle, now)
				if h.Suspended.Sub(now) != want || !h.IsSuspended(now.Add(want-1)) || h.IsSuspended(now.Add(want)) {
					t.Errorf("suspension %d lasts %v, want %v", n+1, h.Suspended.Sub(now), want)
				}
			}
		})
	}
}

func TestAStartThatLastsMakesAllDeathsBeforeItForgotten(t *testing.T) {
	const throttle = 10 * time.Second
	for name, failure := range map[string]bool{"and fails": true, "and ends": false} {
		h, now := &broker.Health{}, noon
		for range 7 {
			now, _ = crash(h, throttle, now)
		}
		now = h.Next(throttle)
		h.Began(now)
		h.Ends(now.Add(throttle), throttle, failure)
		if next := h.Next(throttle); next.After(now.Add(throttle)) {
			t.Errorf("a start that lasts %s: the next is %v after it", name, next.Sub(now))
		}
		if now, next := crash(h, throttle, now.Add(throttle)); next.Sub(now) != throttle {
			t.Errorf("a start that lasts %s, and a death: the pause is %v, want %v", name, next.Sub(now), throttle)
		}
	}
}

func TestAnOpenNeedNotWaitAfterAnEndThatIsNoFailureAndWhatIsKeptAliveWaitsForTheThrottle(t *testing.T) {
	const throttle = 10 * time.Second
	h := &broker.Health{}
	h.Began(noon)
	h.Ends(noon.Add(time.Millisecond), throttle, false)
	if next, again := h.Next(throttle), h.Again(throttle); next.After(noon) || !again.Equal(noon.Add(throttle)) {
		t.Errorf("an open may start it at %v, and it is kept alive at %v", next, again)
	}
	now, _ := crash(h, throttle, noon.Add(throttle))
	now, next := crash(h, throttle, now)
	if again := h.Again(throttle); !again.Equal(next) || next.Sub(now) != 2*throttle {
		t.Errorf("after failures it is kept alive at %v, want %v", again, next)
	}
}

func TestAResetForgetsFailuresAndKeepsTheCount(t *testing.T) {
	const throttle = 10 * time.Second
	h, now := &broker.Health{}, noon
	for range 6 {
		now, _ = crash(h, throttle, now)
	}
	h.Reset()
	if h.IsSuspended(now) || h.Next(throttle).After(now) || h.Starts != 6 || !h.LastStart.Equal(now) || h.Failure != "" {
		t.Errorf("%+v", h)
	}
	if now, next := crash(h, throttle, now); next.Sub(now) != throttle {
		t.Errorf("the pause after the next death is %v, want %v", next.Sub(now), throttle)
	}
}

func TestAClockThatWasPutBackHasNoServiceWaitForIt(t *testing.T) {
	const throttle = 10 * time.Second
	h, now := &broker.Health{}, noon
	for range 9 {
		now, _ = crash(h, throttle, now)
	}
	h.Quick, h.Suspensions = -1, -1 // nor what somebody has written
	h.Recalled(noon.AddDate(-1, 0, 0))
	if next := h.Next(throttle); next.Sub(noon.AddDate(-1, 0, 0)) > time.Hour {
		t.Errorf("a year ago the next start is at %v", next)
	}
	crash(h, throttle, noon)
}

// An attempt is a start and its end, as the model of a health knows them.
type attempt struct {
	began, ended time.Time
	failure      bool
}

// A model computes all from the attempts since the last reset, each time anew.
type model struct {
	throttle time.Duration
	attempts []attempt
}

// deaths counts the quick deaths in a row, up to the last attempt or, of those before, any that lasted. What ends well in between does not end the row.
func (m *model) deaths() (n int) {
	for i := len(m.attempts) - 1; i >= 0; i-- {
		a := m.attempts[i]
		if a.ended.Sub(a.began) >= max(m.throttle, time.Second) {
			return n
		}
		if a.failure {
			n++
		}
	}
	return n
}

// next says when an open may start it; the zero time: at once.
func (m *model) next() time.Time {
	if len(m.attempts) == 0 || !m.attempts[len(m.attempts)-1].failure {
		return time.Time{}
	}
	last, deaths := m.attempts[len(m.attempts)-1], m.deaths()
	if deaths >= 5 {
		suspension := 5 * time.Minute
		for n := 5; n < deaths; n++ {
			suspension = min(2*suspension, time.Hour)
		}
		if until := last.ended.Add(suspension); until.After(last.began.Add(m.pause(4))) {
			return until
		}
	}
	return last.began.Add(m.pause(min(deaths, 4)))
}

func (m *model) pause(deaths int) time.Duration {
	pause := m.throttle
	for ; deaths > 1; deaths-- {
		pause *= 2
	}
	return max(m.throttle, min(pause, 5*time.Minute))
}

func TestHealthIsWhatItsAttemptsSayWhateverTheyAre(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 4))
		throttle := []time.Duration{time.Millisecond, time.Second, 10 * time.Second, 3 * time.Minute, time.Hour}[random.IntN(5)]
		h, m, now := &broker.Health{}, &model{throttle: throttle}, noon
		for step := range 60 {
			if random.IntN(15) == 0 {
				h.Reset()
				m.attempts = nil
			}
			if next := h.Next(throttle); next.After(now) {
				now = next
			}
			now = now.Add(time.Duration(random.Int64N(int64(throttle))))
			h.Began(now)
			a := attempt{began: now, failure: random.IntN(8) > 0}
			now = now.Add(time.Duration(random.Int64N(int64(max(throttle, time.Second)))))
			if random.IntN(10) == 0 {
				now = now.Add(max(throttle, time.Second))
			}
			a.ended = now
			h.Ends(now, throttle, a.failure)
			m.attempts = append(m.attempts, a)
			suspended := a.failure && m.deaths() >= 5
			if got, want := h.Next(throttle), m.next(); !got.Equal(want) || h.IsSuspended(now) != suspended {
				t.Fatalf("seed %d, step %d, throttle %v: next at %v, want %v; suspended: %t, want %t", seed, step, throttle, got, want, h.IsSuspended(now), suspended)
			}
		}
	}
}
