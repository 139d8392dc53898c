package wire

import (
	"encoding/json"
	"time"
)

// A Time is a moment in Unix nanoseconds; 0 is none. In JSON it is RFC 3339 with nanoseconds, in UTC, or null.
type Time int64

// At returns t as a Time; the zero time is none.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixNano())
}

// Time returns t as a time.Time in UTC; none is the zero time.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t)).UTC()
}

// MarshalJSON returns the time in RFC 3339, or null.
func (t Time) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(t.Time())
}

// UnmarshalJSON takes what MarshalJSON returns.
func (t *Time) UnmarshalJSON(text []byte) error {
	var at time.Time // null leaves it zero
	if err := json.Unmarshal(text, &at); err != nil {
		return err
	}
	*t = At(at)
	return nil
}
