package main

import (
	"fmt"
	"strconv"
	"time"
)

// short shows a time with some three digits.
func short(d time.Duration) string { return nanoseconds(float64(d.Nanoseconds())) }

func nanoseconds(n float64) string {
	for _, unit := range []string{"ns", "µs", "ms"} {
		if n < 1000 {
			return digits(n) + " " + unit
		}
		n /= 1000
	}
	return digits(n) + " s"
}

// digits shows a number with some three digits.
func digits(n float64) string {
	switch {
	case n >= 100:
		return strconv.FormatFloat(n, 'f', 0, 64)
	case n >= 10:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'f', 2, 64)
}

// count shows a number without fractions, with commas between the thousands.
func count(n float64) string {
	text := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func times(ratio float64) string { return fmt.Sprintf("%.2f", ratio) }

func megabytes(rate float64) string { return count(rate / 1e6) }

func kib(bytes *float64) string {
	if bytes == nil {
		return ""
	}
	return fmt.Sprintf("%.1f KiB", *bytes/1024)
}

func number(n *float64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", *n)
}
