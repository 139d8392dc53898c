package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// maxScrape bounds what is read of an answer, in bytes.
const maxScrape = 64 << 20

// Scrape asks for the metrics at a place that Check has returned, as Prometheus does, and returns the answer.
func Scrape(ctx context.Context, place string) (string, error) {
	host, transport := place, &http.Transport{DisableKeepAlives: true}
	if at, isPath := strings.CutPrefix(place, unixPrefix); isPath {
		host = "metrics"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", at)
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	if err != nil {
		return "", fmt.Errorf("scrape %s: %w", place, err)
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("scrape %s: %w", place, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxScrape))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	if err != nil {
		return "", fmt.Errorf("scrape %s: %w", place, err)
	}
	return string(text), nil
}

// Values are what a scrape has returned, by name and labels as they are written: fairlead_broker_opens_total{endpoint="fairlead.network",outcome="ok"}.
type Values map[string]float64

// Parse returns the values of a scrape.
func Parse(text string) (Values, error) {
	values := Values{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		values[line[:at]] = value
	}
	return values, nil
}

// Sum returns the sum of a metric over all labels, among which are some that are given as they are written: endpoint="fairlead.network".
func (v Values) Sum(name string, labels ...string) (sum float64) {
	for key, value := range v {
		rest, found := strings.CutPrefix(key, name)
		if !found || rest != "" && rest[0] != '{' {
			continue
		}
		has := true
		for _, l := range labels {
			has = has && (strings.Contains(rest, "{"+l) || strings.Contains(rest, ","+l))
		}
		if has {
			sum += value
		}
	}
	return sum
}
