// Package history keeps what a gateway has seen of the counts and the lag of all services in the
// last hour.
//
// It has no I/O, no clock and no context. A [Ring] is bounded: the number of its values and of its
// series does not depend on what replicas report.
package history

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// Interval is the time between two values.
	Interval = 5 * time.Second
	// Length is the number of values of a series: one hour.
	Length = 720
	// maxUnknown bounds the series with a name or service that this version does not know, because
	// replicas name their counts. A known series has its place in any case.
	maxUnknown = 32
	// maxNameLength bounds the name of a series.
	maxNameLength = 64
	// maxLate is by how many slots a sample may be older than the newest one. An older one shows
	// that the clock was set back.
	maxLate = 12
)

// Key names a series.
type Key struct{ Service, Name string }

// Series is one figure over time, the oldest value first. NaN is a gap.
type Series struct {
	Key
	Values []float64
}

// Ring has the values of the last hour. The zero value is empty. It is for one goroutine.
//
// Time is divided into slots of Interval. A slot without a sample, and a figure that a sample does
// not have, are gaps.
type Ring struct {
	origin time.Time
	// last is the number of the newest slot, first that of the oldest slot since the start.
	last, first int64
	series      map[Key][]float64 // Length values, by slot modulo Length
}

// Add puts a sample into the slot that is nearest to its time. The newest sample of a slot counts.
// A sample that is older than the newest slot is dropped. After a gap of more than an hour, or if
// the clock is set back by more than a minute, the ring begins anew.
func (r *Ring) Add(at time.Time, sample map[Key]float64) {
	slot := r.slotOf(at)
	if r.series == nil || slot >= r.last+Length || slot < r.last-maxLate {
		*r = Ring{origin: at.Round(0), series: map[Key][]float64{}}
		slot = 0
	}
	if slot < r.last {
		return
	}
	for ; r.last < slot; r.last++ {
		r.clear(r.last + 1)
	}
	r.first = max(r.first, r.last-Length+1)
	r.clear(slot)
	r.forgetEmpty()
	for _, key := range sortedKeys(sample) {
		values, known := r.series[key]
		if !known {
			if len(key.Name) > maxNameLength || len(key.Service) > maxNameLength || !key.isKnown() && r.unknown() >= maxUnknown {
				continue
			}
			values = slices.Repeat([]float64{math.NaN()}, Length)
			r.series[key] = values
		}
		values[slot%Length] = sample[key]
	}
}

// unknown returns how many series this version does not know.
func (r *Ring) unknown() int {
	count := 0
	for key := range r.series {
		if !key.isKnown() {
			count++
		}
	}
	return count
}

// slotOf rounds, so that samples whose delay varies do not skip a slot.
func (r *Ring) slotOf(at time.Time) int64 {
	return int64(math.Round(float64(at.Round(0).Sub(r.origin)) / float64(Interval)))
}

func (r *Ring) clear(slot int64) {
	for _, values := range r.series {
		values[slot%Length] = math.NaN()
	}
}

// forgetEmpty drops the series that have no value any more.
func (r *Ring) forgetEmpty() {
	for key, values := range r.series {
		if !slices.ContainsFunc(values, isNumber) {
			delete(r.series, key)
		}
	}
}

func isNumber(value float64) bool { return !math.IsNaN(value) }

func sortedKeys(sample map[Key]float64) []Key {
	keys := make([]Key, 0, len(sample))
	for key := range sample {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
}

// Read returns copies of all series, ordered by service and name, and the time of their last
// values. Slots since the last sample are gaps. The series begin
// at the first sample, or an hour ago.
func (r *Ring) Read(now time.Time) (end time.Time, all []Series) {
	if r.series == nil {
		return now, nil
	}
	last := max(r.last, r.slotOf(now.Add(-Interval))) // the sample of a later slot may still come
	end = r.origin.Add(time.Duration(last) * Interval)
	first := max(r.first, last-Length+1)
	for key := range r.series {
		series := Series{Key: key, Values: make([]float64, 0, last-first+1)}
		for slot := first; slot <= last; slot++ {
			value := math.NaN()
			if slot <= r.last {
				value = r.series[key][slot%Length]
			}
			series.Values = append(series.Values, value)
		}
		all = append(all, series)
	}
	slices.SortFunc(all, func(a, b Series) int { return compareKeys(a.Key, b.Key) })
	return end, all
}
