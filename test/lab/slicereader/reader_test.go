package slicereader_test

import (
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/slicereader"
)

func slice(name string, addresses ...string) slicereader.Event {
	object := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		object.Endpoints = append(object.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return slicereader.Event{Slice: object}
}

func gone(name string) slicereader.Event {
	event := slice(name)
	event.Deleted = true
	return event
}

// The cases are what Linkerd and Cilium did with the same events.
func TestReader(t *testing.T) {
	for name, c := range map[string]struct {
		batches [][]slicereader.Event
		missing []string
	}{
		"an endpoint stays":                       {batches: [][]slicereader.Event{{slice("a", "1", "2")}, {slice("b", "3")}, {slice("a", "1")}}},
		"the taker is written, the giver deleted": {batches: [][]slicereader.Event{{slice("a", "1")}, {slice("b", "2")}, {slice("b", "2", "1")}, {gone("a")}}, missing: []string{"1"}},
		"the taker is written, the giver loses":   {batches: [][]slicereader.Event{{slice("a", "1", "3")}, {slice("b", "2", "1")}, {slice("a", "3")}}, missing: []string{"1"}},
		"both in one batch":                       {batches: [][]slicereader.Event{{slice("a", "1")}, {slice("b", "2")}, {slice("b", "2", "1"), gone("a")}}},
		"the taker is written once more":          {batches: [][]slicereader.Event{{slice("a", "1")}, {slice("b", "1")}, {gone("a")}, {slice("b", "1")}}},
		"the giver goes first":                    {batches: [][]slicereader.Event{{slice("a", "1")}, {gone("a")}, {slice("b", "1")}}},
	} {
		reader := slicereader.New(slicereader.ByAddress)
		for _, batch := range c.batches {
			reader.Apply(batch...)
		}
		if got := reader.Missing(); !slices.Equal(got, c.missing) {
			t.Errorf("%s: missing %q, want %q", name, got, c.missing)
		}
	}
}

func TestReader_KnowsOnlyReadyEndpoints(t *testing.T) {
	reader := slicereader.New(slicereader.ByPod)
	event, unready := slice("a", "1"), false
	event.Slice.Endpoints[0].Conditions.Ready = &unready
	reader.Apply(event)
	reader.Apply(gone("b"))
	if got := reader.Missing(); len(got) != 0 {
		t.Errorf("missing %q, want none: the endpoint is not ready", got)
	}
}
