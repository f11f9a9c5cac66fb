package history_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/history"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

var (
	start  = time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	leases = history.Key{Service: "leasesvc", Name: "leases"}
	gap    = math.NaN()
)

func sample(value float64) map[history.Key]float64 { return map[history.Key]float64{leases: value} }

func at(slot float64) time.Time {
	return start.Add(time.Duration(slot * float64(history.Interval)))
}

func wantValues(t *testing.T, r *history.Ring, now time.Time, want ...float64) {
	t.Helper()
	_, all := r.Read(now)
	if len(all) != 1 {
		t.Fatalf("the ring has %d series, want 1", len(all))
	}
	if diff := cmp.Diff(want, all[0].Values, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestRing_EmptyHasNoSeries(t *testing.T) {
	var r history.Ring
	if end, all := r.Read(start); len(all) != 0 || !end.Equal(start) {
		t.Errorf("Read() = %s, %v, want no series", end, all)
	}
}

// What was not measured is a gap: a slot without a sample, a figure that a sample does not have,
// and the time since the last sample.
func TestRing_GapsAreNoZeros(t *testing.T) {
	var r history.Ring
	r.Add(at(0), sample(7))
	r.Add(at(1), nil)
	r.Add(at(4), sample(0))
	wantValues(t, &r, at(7), 7, gap, gap, gap, 0, gap, gap)
	if end, _ := r.Read(at(7)); !end.Equal(at(6)) {
		t.Errorf("the end is %s, want %s", end, at(6))
	}
}

func TestRing_ADelayThatVariesSkipsNoSlot(t *testing.T) {
	var r history.Ring
	for i, delay := range []float64{0.1, 0.45, 0, 0.3} {
		r.Add(at(float64(i)+delay), sample(float64(i)))
	}
	wantValues(t, &r, at(3.3), 0, 1, 2, 3)
}

// The sample of a slot is not missing before it is due, or a chart would end with a gap that
// blinks.
func TestRing_ASampleThatMayStillComeIsNoGap(t *testing.T) {
	var r history.Ring
	r.Add(at(0), sample(1))
	wantValues(t, &r, at(1.4), 1)
	wantValues(t, &r, at(1.6), 1, gap)
}

func TestRing_TheNewestSampleOfASlotCounts(t *testing.T) {
	var r history.Ring
	r.Add(at(0), sample(1))
	r.Add(at(1), sample(2))
	r.Add(at(1.2), sample(3))
	r.Add(at(0), sample(9)) // late
	wantValues(t, &r, at(1), 1, 3)
}

func TestRing_KeepsAnHour(t *testing.T) {
	var r history.Ring
	for i := range history.Length + 10 {
		r.Add(at(float64(i)), sample(float64(i)))
	}
	_, all := r.Read(at(history.Length + 9))
	values := all[0].Values
	if len(values) != history.Length || values[0] != 10 || values[len(values)-1] != history.Length+9 {
		t.Errorf("the ring has %d values from %v to %v, want an hour that ends with the last one", len(values), values[0], values[len(values)-1])
	}
	_, all = r.Read(at(history.Length + 15))
	if got := all[0].Values; len(got) != history.Length || got[0] != 15 || !math.IsNaN(got[history.Length-1]) {
		t.Errorf("after a silence the ring has %d values from %v to %v, want gaps at the end", len(got), got[0], got[history.Length-1])
	}
}

func TestRing_AJumpOfTheClockBeginsAnew(t *testing.T) {
	for _, jump := range []float64{history.Length + 5, -history.Length - 5} {
		var r history.Ring
		r.Add(at(0), sample(1))
		r.Add(at(jump), sample(2))
		wantValues(t, &r, at(jump), 2)
	}
}

// A clock that is set back by minutes must not stop the history until it has caught up: old values
// would be shown as those of now.
func TestRing_AClockThatIsSetBackByMinutesLosesNoNewSamples(t *testing.T) {
	var r history.Ring
	for i := range 100 {
		r.Add(at(float64(i)), sample(1))
	}
	for i := range 3 {
		r.Add(at(float64(40+i)), sample(2))
	}
	wantValues(t, &r, at(42), 2, 2, 2)
}

// Replicas name their counts. A hostile one must not fill the memory, and a series of an earlier
// version must not keep its place for ever.
func TestRing_IsBounded(t *testing.T) {
	var r history.Ring
	r.Add(at(0), map[history.Key]float64{{Service: "leasesvc", Name: strings.Repeat("a", 65)}: 1})
	if _, all := r.Read(at(0)); len(all) != 0 {
		t.Error("a name of any length is kept")
	}
	for i := range 3 {
		hostile := map[history.Key]float64{}
		for j := range 1000 {
			hostile[history.Key{Service: "leasesvc", Name: fmt.Sprintf("count_%d_%d", i, j)}] = 1
		}
		r.Add(at(float64(i)), hostile)
	}
	if _, all := r.Read(at(2)); len(all) != 32 {
		t.Errorf("the ring has %d series, want 32", len(all))
	}
	r.Add(at(2), sample(1))
	if _, all := r.Read(at(2)); !slices.ContainsFunc(all, func(s history.Series) bool { return s.Key == leases }) {
		t.Error("unknown counts have taken the place of a known one")
	}
	for i := range history.Length {
		r.Add(at(float64(3+i)), sample(1))
	}
	if _, all := r.Read(at(history.Length + 2)); len(all) != 1 {
		t.Errorf("an hour later the ring has %d series, want the one that is still reported", len(all))
	}
}

func replica(led int, counts map[string]int64, contact time.Duration) *gatewayv1.ReplicaResult {
	return &gatewayv1.ReplicaResult{Latency: durationpb.New(20 * time.Millisecond), Status: &statusv1.ReplicaStatus{
		LedShards: make([]int32, led), Counts: counts,
		Dependencies: []*statusv1.Dependency{{Name: "etcd", LastContactTime: timestamppb.New(start.Add(-contact))}},
	}}
}

func TestSampleOf(t *testing.T) {
	silent := &gatewayv1.ReplicaResult{Latency: durationpb.New(time.Second)}
	service := func(led int32, replicas ...*gatewayv1.ReplicaResult) *gatewayv1.ClusterStatus {
		return &gatewayv1.ClusterStatus{MergeTime: timestamppb.New(start), Services: []*gatewayv1.ServiceStatus{{
			Service: "leasesvc", ShardCount: 3, LedShardCount: led, Replicas: replicas,
			Verdict: &metav1.Verdict{Problems: []*metav1.Problem{{Code: "A"}}},
		}}}
	}
	few, many := map[string]int64{"leases": 5}, map[string]int64{"leases": 9}
	hostile := map[string]int64{"leases": 1}
	for i := range 1000 {
		hostile[fmt.Sprintf("a%03d", i)] = 1
	}
	for name, c := range map[string]struct {
		status *gatewayv1.ClusterStatus
		want   map[string]float64
	}{
		"counts of all leaders": {
			service(3, replica(1, few, time.Second), replica(2, many, 3*time.Second), replica(0, map[string]int64{"leases": 100}, time.Second)),
			map[string]float64{
				"leases": 14, "problems": 1, "replicas": 3, "replicas_answering": 3, "shards_without_leader": 0,
				"answer_seconds": 0.02, "contact_age_seconds": 3,
			},
		},
		"a leader that does not answer": {
			service(3, replica(1, few, time.Second), silent),
			map[string]float64{
				"problems": 1, "replicas": 2, "replicas_answering": 1, "shards_without_leader": 0, "answer_seconds": 0.02, "contact_age_seconds": 1,
			},
		},
		"a hostile leader with 1,000 counts": {
			service(3, replica(1, few, time.Second), replica(2, hostile, time.Second)),
			map[string]float64{
				"leases": 6, "a000": 1, "a001": 1, "a002": 1, "a003": 1, "a004": 1, "a005": 1, "a006": 1, "a007": 1,
				"problems": 1, "replicas": 2, "replicas_answering": 2, "shards_without_leader": 0, "answer_seconds": 0.02, "contact_age_seconds": 1,
			},
		},
		"a shard without leader": {
			service(2, replica(2, few, -time.Second)),
			map[string]float64{
				"problems": 1, "replicas": 1, "replicas_answering": 1, "shards_without_leader": 1, "answer_seconds": 0.02, "contact_age_seconds": 0,
			},
		},
		"no answer": {
			service(0, silent),
			map[string]float64{"problems": 1, "replicas": 1, "replicas_answering": 0, "shards_without_leader": 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[history.Key]float64{}
			for name, value := range c.want {
				want[history.Key{Service: "leasesvc", Name: name}] = value
			}
			if diff := cmp.Diff(want, history.SampleOf(c.status)); diff != "" {
				t.Errorf("SampleOf() (-want +got):\n%s", diff)
			}
		})
	}
}
