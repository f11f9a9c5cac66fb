package gateway_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestListShards_NamesServicesWithoutAReplica(t *testing.T) {
	t.Parallel()
	k := newLeasesvc("l1")
	_, l1 := k.start(t, "l1")
	service := startGateway(t, newDirectory(l1), longTimeout)
	page, err := service.ListShards(t.Context(), &statusv1.ListShardsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	for _, part := range page.Missing {
		services = append(services, part.Service)
	}
	if diff := cmp.Diff([]string{"bootstrapsvc", "slicesvc"}, services); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}
