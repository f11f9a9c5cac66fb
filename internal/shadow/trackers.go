package shadow

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
)

// Trackers has a Tracker for each loop in dry run. Nil has none.
type Trackers struct {
	cfg      Config
	trackers []*Tracker // ordered by name
}

// New returns the trackers of the selected loops. It registers metrics only if there is one.
func New(cfg Config, registerer prometheus.Registerer) (*Trackers, error) {
	t := &Trackers{cfg: cfg}
	if len(cfg.Loops) == 0 {
		return t, nil
	}
	m, err := newMetrics(registerer)
	if err != nil {
		return nil, err
	}
	for _, name := range cfg.capable {
		if cfg.Selects(name) {
			m.expect(name)
			t.trackers = append(t.trackers, newTracker(name, cfg.Settle, m))
		}
	}
	return t, nil
}

// Loops returns the names of the loops in dry run.
func (t *Trackers) Loops() []string {
	var names []string
	for _, tracker := range t.All() {
		names = append(names, tracker.loop)
	}
	return names
}

// Tracker returns the Tracker of a loop; nil if the loop is not in dry run.
func (t *Trackers) Tracker(loop string) *Tracker {
	for _, tracker := range t.All() {
		if tracker.loop == loop {
			return tracker
		}
	}
	return nil
}

// All returns the trackers, ordered by name.
func (t *Trackers) All() []*Tracker {
	if t == nil {
		return nil
	}
	return t.trackers
}

// Settle returns the settling time.
func (t *Tracker) Settle() time.Duration { return t.settle }

// metrics are those of all loops in dry run of a process.
type metrics struct {
	differences *prometheus.GaugeVec
	found       *prometheus.CounterVec
	compared    *prometheus.GaugeVec
	settling    *prometheus.GaugeVec
	undecided   *prometheus.GaugeVec
	verdicts    *prometheus.CounterVec
	leads       *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		differences: gauge("trivet_shadow_differences", "Differences that a loop in dry run finds now and that have settled, by kind and by whether a reason is known.", "loop", "kind", "explained"),
		found: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_shadow_differences_total", Help: "Differences that settled since the process started.",
		}, []string{"loop", "kind", "explained"}),
		compared:  gauge("trivet_shadow_compared_objects", "Objects that the last pass of a loop in dry run compared.", "loop"),
		settling:  gauge("trivet_shadow_settling_objects", "Objects with a difference that has not settled.", "loop"),
		undecided: gauge("trivet_shadow_undetermined", "1 while a loop in dry run cannot say whether there are differences.", "loop"),
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_shadow_verdicts_total", Help: "Nodes that the loop in dry run and upstream's controller both found silent, by which was first: trivet or upstream.",
		}, []string{"loop", "first"}),
		leads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_shadow_verdict_lead_seconds_total", Help: "Sum of the time by which the first verdict preceded the other, by which was first.",
		}, []string{"loop", "first"}),
	}
	if registerer == nil {
		return m, nil
	}
	var problems []error
	for _, collector := range []prometheus.Collector{m.differences, m.found, m.compared, m.settling, m.undecided, m.verdicts, m.leads} {
		problems = append(problems, registerer.Register(collector))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("register metrics of dry runs: %w", err)
	}
	return m, nil
}

// expect creates the series of a loop, so that an alert sees the first change.
func (m *metrics) expect(loop string) {
	for _, kind := range difference.Kinds() {
		for _, explained := range []bool{false, true} {
			m.differences.WithLabelValues(loop, string(kind), strconv.FormatBool(explained))
			m.found.WithLabelValues(loop, string(kind), strconv.FormatBool(explained))
		}
	}
	for _, first := range []string{"trivet", "upstream"} {
		m.verdicts.WithLabelValues(loop, first)
		m.leads.WithLabelValues(loop, first)
	}
	m.compared.WithLabelValues(loop)
	m.settling.WithLabelValues(loop)
	m.undecided.WithLabelValues(loop).Set(1)
}

func (m *metrics) began(loop string, count Count, n int) {
	m.found.WithLabelValues(loop, string(count.Kind), strconv.FormatBool(count.Explained)).Add(float64(n))
}

func (m *metrics) show(state *Comparison) {
	for _, kind := range difference.Kinds() {
		for _, explained := range []bool{false, true} {
			n := state.Counts[Count{Kind: kind, Explained: explained}]
			m.differences.WithLabelValues(state.Loop, string(kind), strconv.FormatBool(explained)).Set(float64(n))
		}
	}
	m.compared.WithLabelValues(state.Loop).Set(float64(state.Compared))
	m.settling.WithLabelValues(state.Loop).Set(float64(state.Settling))
	undetermined := 0.0
	if state.Undetermined != "" {
		undetermined = 1
	}
	m.undecided.WithLabelValues(state.Loop).Set(undetermined)
}

func (m *metrics) verdict(loop, first string, lead time.Duration) {
	m.verdicts.WithLabelValues(loop, first).Inc()
	m.leads.WithLabelValues(loop, first).Add(lead.Abs().Seconds())
}
