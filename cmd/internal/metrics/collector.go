// Package metrics shows what a broker and its network service count, as Prometheus reads it. Nothing is done for it but at a scrape.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/count"
)

// describe describes a metric of the broker or of the network service. Its labels have a bound: endpoints, services and networks are those of files, or were
// registered by who may register anything; codes, states and causes are fixed sets.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("fairlead_"+name, help, labels, nil)
}

// What the broker shows.
var (
	brokerInfo = describe("broker_info", "Always 1; the version of the broker.", "version")
	opens      = describe("broker_opens_total", "Opens by what came of them: ok, which is handed over, or the code of the refusal. "+
		"Endpoints that no service file declares, and that nobody has registered, are other.", "endpoint", "outcome")
	openTime     = describe("broker_open_duration_seconds", "Time of opens that were handed over, from their first frame on; also while they waited for a service to start.")
	handOverTime = describe("broker_handover_duration_seconds", "Time of the hand-over itself, once there is an instance.")
	sessions     = describe("broker_sessions_open", "Sessions that are open or being opened.", "endpoint")
	ends         = describe("broker_sessions_closed_total", "Sessions that have closed, by the code of their end.", "code")
	services     = describe("broker_services", "Declared services in each state.", "state")
	starts       = describe("broker_service_starts_total", "Starts that the broker has begun, also those that failed, by what they were for: "+
		"open, run_at_load, keep_alive or command.", "service", "cause")
	exits = describe("broker_service_exits_total", "Instances that have ended: ok (status 0), failed (another status), signal (one has ended it), "+
		"not_started (it could not be), unknown (no kernel tells).", "service", "how")
	waiting   = describe("broker_opens_waiting", "Opens that wait for an instance of a service, or for their turn.", "service")
	denied    = describe("broker_denied_total", "Opens, registrations and commands that the policy has refused.")
	overQuota = describe("broker_over_quota_total", "Connections, opens and registrations that a limit of the broker's has refused.")
)

// A Collector shows a broker, and the network service if an instance of it runs.
type Collector struct{ broker *broker.Broker }

// NewCollector returns the Collector of a broker.
func NewCollector(b *broker.Broker) *Collector { return &Collector{b} }

// Describe sends what may be shown.
func (*Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		brokerInfo, opens, openTime, handOverTime, sessions, ends, services, starts, exits, waiting, denied, overQuota,
		networkUp, addresses, leases, leasesWaiting, allocations, allocationTime, leasesEnded, reclaims,
	} {
		to <- d
	}
}

// Collect sends what was counted until now. It takes no longer than the network service may take to answer.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	out := sink(to)
	out.broker(c.broker.Counters())
	counters, err := askNetwork(c.broker)
	out.network(counters, err == nil)
}

// A sink takes metrics.
type sink chan<- prometheus.Metric

func (s sink) broker(c broker.Counters) {
	s.gauge(brokerInfo, 1, c.Version)
	for endpoint, outcomes := range c.Opens {
		s.counters(opens, outcomes, endpoint)
		s.gauge(sessions, float64(c.Sessions[endpoint]), endpoint)
	}
	s.times(openTime, c.OpenTime)
	s.times(handOverTime, c.HandOver)
	s.counters(ends, c.Ends)
	for state, n := range c.States {
		s.gauge(services, float64(n), state)
	}
	for name, counted := range c.Services {
		s.counters(starts, counted.Starts, name)
		s.counters(exits, counted.Exits, name)
		s.gauge(waiting, float64(counted.Waiting), name)
	}
	s.counter(denied, c.Denied)
	s.counter(overQuota, c.OverQuota)
}

func (s sink) gauge(d *prometheus.Desc, value float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (s sink) counter(d *prometheus.Desc, n int64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// counters sends each of several counters, whose name is the last label.
func (s sink) counters(d *prometheus.Desc, each map[string]int64, labels ...string) {
	for name, n := range each {
		s.counter(d, n, append(labels[:len(labels):len(labels)], name)...)
	}
}

// times sends a histogram, whose buckets count all that is not over their bound.
func (s sink) times(d *prometheus.Desc, t count.Times, labels ...string) {
	buckets, total := map[float64]uint64{}, uint64(0)
	for i, n := range t.Counts {
		total += uint64(n)
		if i < len(t.Bounds) {
			buckets[t.Bounds[i].Seconds()] = total
		}
	}
	s <- prometheus.MustNewConstHistogram(d, total, t.Sum.Seconds(), buckets, labels...)
}
