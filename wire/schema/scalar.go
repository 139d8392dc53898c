package schema

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// scalar converts a token to a value of a type that is not made of others. It is not ok if the type does not take it.
func scalar(token json.Token, t Type) (v any, ok bool) {
	var err error
	switch token := token.(type) {
	case json.Number:
		switch t.Kind {
		case Int:
			v, err = strconv.ParseInt(token.String(), 10, t.bits())
		case Uint:
			v, err = strconv.ParseUint(token.String(), 10, t.bits())
		case Float:
			return floating(token.String(), t.bits())
		default:
			return nil, false
		}
		return v, err == nil
	case string:
		return ofString(token, t)
	case bool:
		return token, t.Kind == Bool
	case nil:
		switch t.Kind {
		case Descriptor:
			return nil, true
		case Bytes:
			return []byte{}, true
		case UnixTime:
			return int64(0), true
		}
	}
	return nil, false
}

// ofString converts a JSON string.
func ofString(s string, t Type) (v any, ok bool) {
	switch t.Kind {
	case String:
		return s, true
	case Bytes:
		b, err := base64.StdEncoding.DecodeString(s)
		return b, err == nil && (t.Len == 0 || len(b) <= t.Len)
	case Float:
		if s == "NaN" || s == "+Inf" || s == "-Inf" {
			return floating(s, t.bits())
		}
	case Time, UnixTime:
		at, err := time.Parse(time.RFC3339Nano, s)
		at = at.UTC()
		if t.Kind == Time {
			return at, err == nil && at.Year() >= 0 && at.Year() <= 9999
		}
		return int64(wire.At(at)), err == nil && (at.IsZero() || wire.At(at).Time().Equal(at) || at.UnixNano() == 0 && at.Unix() == 0)
	}
	return nil, false
}

// floating converts a number to a float of a width.
func floating(s string, bits int) (any, bool) {
	f, err := strconv.ParseFloat(s, bits)
	if bits == 32 {
		return float32(f), err == nil
	}
	return f, err == nil
}

// number converts a number by its own type: one without point and exponent is an integer, if it fits.
func number(s string) (any, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, &mismatch{text: "want a number of 64 bits, got " + wire.Printable(s, 40)}
	}
	return f, nil
}
