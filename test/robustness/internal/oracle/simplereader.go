package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/slicereader"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// simpleReaders finds ready endpoints of slices that a reader which applies each event of a slice
// alone does not know.
func simpleReaders(h history.History, f *finding) {
	readers := map[string]*slicereader.Reader{} // by Service
	since := map[history.Lag]time.Duration{}    // by subject
	versions := slices.SortedFunc(slices.Values(h.Slices), func(a, b history.SliceVersion) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, version := range versions {
		reader := readers[version.Service]
		if reader == nil {
			reader = slicereader.New(slicereader.ByAddress)
			readers[version.Service] = reader
		}
		reader.Apply(slicereader.Event{Slice: objectOf(version), Deleted: version.Gone})
		f.count("simple-reader", 1)
		missing := map[history.Lag]bool{}
		for _, address := range reader.Missing() {
			lag := history.Lag{Rule: version.Service, What: fmt.Sprintf("a simple reader of %s lacks %s", version.Service, address)}
			missing[lag] = true
			if _, lasts := since[lag]; !lasts {
				since[lag] = version.At
			}
		}
		for _, lag := range slices.Collect(maps.Keys(since)) {
			if lag.Rule == version.Service && !missing[lag] {
				f.lag("simple-reader", history.Slicesvc, since[lag], version.At, lag.What)
				delete(since, lag)
			}
		}
	}
	for lag, from := range since {
		f.lag("simple-reader", history.Slicesvc, from, h.End, lag.What)
	}
}

// objectOf returns what a reader sees of a slice.
func objectOf(version history.SliceVersion) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: version.Name}}
	for _, address := range slices.Sorted(maps.Keys(version.Ready)) {
		ready := version.Ready[address]
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return slice
}

// spoilSimpleReader lets the first slice with a ready address be deleted after another one has all
// its addresses, and nothing be written to either again.
func spoilSimpleReader(h *history.History) bool {
	for _, s := range h.Slices {
		if !slices.Contains(slices.Collect(maps.Values(s.Ready)), true) || !lasts(*h, s.Service) {
			continue
		}
		drop(&h.Slices, func(o history.SliceVersion) bool { return o.Name == s.Name && o.Revision > s.Revision })
		taker, giver := s, s
		taker.Name, taker.Revision, taker.At = s.Name+"-taker", later, max(s.At, h.Begin)
		giver.Revision, giver.At, giver.Ready, giver.Gone = later+1, taker.At, nil, true
		h.Slices = append(h.Slices, taker, giver)
		return true
	}
	return false
}
