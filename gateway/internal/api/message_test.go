package api

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

func TestArgumentsOf_AreThoseOfTheListAndTheWatch(t *testing.T) {
	states := []leasev1.Lease_State{leasev1.Lease_STATE_ALIVE, leasev1.Lease_STATE_EXPIRED}
	list := argumentsOf(&leasev1.ListLeasesRequest{Parent: "namespaces/x", States: states, PageSize: 7, PageToken: "p"})
	watch := argumentsOf(&leasev1.WatchLeasesRequest{Parent: "namespaces/x", States: states, ResumeToken: "t"})
	if list != watch || list == "" {
		t.Errorf("arguments %q and %q, want the same", list, watch)
	}
	for name, other := range map[string]proto.Message{
		"another parent":  &leasev1.WatchLeasesRequest{Parent: "namespaces/y", States: states},
		"another state":   &leasev1.WatchLeasesRequest{Parent: "namespaces/x", States: states[:1]},
		"without filters": &leasev1.WatchLeasesRequest{},
	} {
		if argumentsOf(other) == watch {
			t.Errorf("%s: the same arguments %q", name, watch)
		}
	}
}

func TestSelectorOf(t *testing.T) {
	lease := func(name string, state leasev1.Lease_State) merge.Item {
		return &leasev1.Lease{Name: name, State: state}
	}
	alive, expired := leasev1.Lease_STATE_ALIVE, leasev1.Lease_STATE_EXPIRED
	for name, c := range map[string]struct {
		request *leasev1.WatchLeasesRequest
		item    merge.Item
		want    bool
	}{
		"in the namespace":     {request: &leasev1.WatchLeasesRequest{Parent: "namespaces/x"}, item: lease("namespaces/x/leases/a", alive), want: true},
		"in another namespace": {request: &leasev1.WatchLeasesRequest{Parent: "namespaces/x"}, item: lease("namespaces/xy/leases/a", alive)},
		"in a state":           {request: &leasev1.WatchLeasesRequest{States: []leasev1.Lease_State{expired, alive}}, item: lease("a", alive), want: true},
		"in another state":     {request: &leasev1.WatchLeasesRequest{States: []leasev1.Lease_State{expired}}, item: lease("a", alive)},
		"of two filters, one":  {request: &leasev1.WatchLeasesRequest{Parent: "namespaces/x", States: []leasev1.Lease_State{expired}}, item: lease("namespaces/x/leases/a", alive)},
	} {
		if got := selectorOf(c.request, (&leasev1.Lease{}).ProtoReflect().Descriptor())(c.item); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for _, everything := range []string{"", "namespaces/-"} {
		request := &leasev1.WatchLeasesRequest{Parent: everything, ResumeToken: "t"}
		if selects := selectorOf(request, (&leasev1.Lease{}).ProtoReflect().Descriptor()); selects != nil && !selects(lease("namespaces/x/leases/a", alive)) {
			t.Errorf("parent %q does not select all", everything)
		}
	}
}

func TestSameBut_IgnoresSignalsAndSmallDifferencesOfTime(t *testing.T) {
	same := sameBut([]field{"signals"}, "change_time")
	at := func(seconds int64, nanos int32) *timestamppb.Timestamp {
		return &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}
	}
	node := &nodev1.NodeHealth{
		Name: "nodes/a", ChangeTime: at(100, 0), Signals: []*nodev1.Signal{{SeenTime: at(100, 0)}}, Owner: &metav1.Owner{Epoch: 1},
	}
	for name, c := range map[string]struct {
		change func(*nodev1.NodeHealth)
		want   bool
	}{
		"nothing":              {change: func(*nodev1.NodeHealth) {}, want: true},
		"another signal":       {change: func(n *nodev1.NodeHealth) { n.Signals = nil }, want: true},
		"almost the same time": {change: func(n *nodev1.NodeHealth) { n.ChangeTime = at(100, 900_000_000) }, want: true},
		"a later time":         {change: func(n *nodev1.NodeHealth) { n.ChangeTime = at(102, 0) }},
		"no time":              {change: func(n *nodev1.NodeHealth) { n.ChangeTime = nil }},
		"another health":       {change: func(n *nodev1.NodeHealth) { n.Health = nodev1.NodeHealth_HEALTH_SILENT }},
		"a new term":           {change: func(n *nodev1.NodeHealth) { n.Owner.Epoch = 2 }},
	} {
		other := proto.CloneOf(node)
		c.change(other)
		before := proto.CloneOf(other)
		if got := same(node, other); got != c.want || !proto.Equal(other, before) {
			t.Errorf("%s: same = %v, want %v, and the message unchanged", name, got, c.want)
		}
	}
}
