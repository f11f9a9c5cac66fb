package leasesvc_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	apiv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/shard"
)

// expectSource checks the one source of an answer.
func expectSource(t *testing.T, sources []*apiv1.Source, epoch int64, shards ...int32) {
	t.Helper()
	want := []*apiv1.Source{{Service: "leasesvc", ReplicaId: "replica-1", Epoch: epoch, Shards: shards}}
	ignored := protocmp.IgnoreFields(&apiv1.Source{}, "read_time", "caches")
	if diff := cmp.Diff(want, sources, protocmp.Transform(), ignored); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
		return
	}
	if age := time.Since(sources[0].ReadTime.AsTime()); age < 0 || age > time.Minute {
		t.Errorf("read %v ago", age)
	}
}

func (f *fixture) allShards() (all []int32) {
	for number := range f.shards {
		all = append(all, int32(number))
	}
	return all
}

func TestGetLease_ShowsLeaseAndWrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	begin := time.Now().Add(-time.Millisecond)
	f.beat(3, holder("n1", "boot"))
	got := f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN)
	number := int32(shard.Of("node", "n1", f.shards))
	want := &leasev1.Lease{
		Name: leaseName("n1"), Holder: &leasev1.Holder{Class: "node", Name: "n1", BootId: "boot"},
		State: leasev1.Lease_STATE_ALIVE, Sequence: 3,
		Owner: &apiv1.Owner{ReplicaId: "replica-1", Shard: &number, Epoch: 1},
		Write: &leasev1.Lease_Write{State: leasev1.Lease_Write_STATE_WRITTEN, Reason: "RENEWAL"},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(),
		protocmp.IgnoreFields(&leasev1.Lease{}, "start_time", "observe_time", "last_beat_time", "expire_time", "etag"),
		protocmp.IgnoreFields(&leasev1.Lease_Write{}, "renew_time", "resource_version", "write_time", "due_time")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	last := got.ObserveTime.AsTime()
	if last.Before(begin) || last.After(time.Now()) || got.ExpireTime.AsTime().Sub(last) != 20*time.Second {
		t.Errorf("last beat %v, expires %v", last, got.ExpireTime.AsTime())
	}
	if renewed := got.Write.RenewTime.AsTime(); renewed.Sub(last).Abs() > time.Millisecond {
		t.Errorf("renewTime %v, want the beat's %v", renewed, last)
	}
	response, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
	if err != nil {
		t.Fatal(err)
	}
	expectSource(t, response.Sources, 1, number)
}

func TestGetLease_EtagChangesWithBootAndTerm(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	seen := map[string]string{}
	expectNew := func(what string) {
		t.Helper()
		etag := f.get("n1").Etag
		if before := seen[etag]; etag == "" || before != "" {
			t.Errorf("etag %q of %s, which is that of %q", etag, what, before)
		}
		seen[etag] = what
	}
	f.beat(1, holder("n1", "1"))
	expectNew("the first boot")
	first := f.get("n1").Etag
	f.beat(2, holder("n1", "1"))
	if got := f.get("n1").Etag; got != first {
		t.Errorf("etag %q after a renewal, want %q", got, first)
	}
	f.beat(1, holder("n1", "2"))
	expectNew("the second boot")
	f.candidate.Lose()
	f.awaitShard(0, "NO_LEADER")
	f.candidate.Regain()
	f.awaitLeading()
	f.beat(1, holder("n1", "2"))
	expectNew("the second term")
}

func TestGetLease_ShowsTheRejectedDuplicate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("n1", "1"))
	f.beat(1, holder("n1", "2"))
	for range 2 {
		f.beat(2, holder("n1", "1"))
	}
	got := f.get("n1").Duplicate
	if got.GetBootId() != "1" || got.GetRejectionCount() != 2 || time.Since(got.GetLastRejectionTime().AsTime()) > time.Minute {
		t.Errorf("duplicate %v, want boot 1 with two rejections", got)
	}
}

func TestGetLease_UnknownIsNotFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	for _, name := range []string{leaseName("n1"), "namespaces/default/leases/n1"} {
		_, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: name})
		expectError(t, name, err, codes.NotFound, "LEASE_NOT_FOUND")
	}
	_, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: "n1"})
	expectError(t, "no resource name", err, codes.InvalidArgument, "VALIDATION_FAILED")
}

func TestListLeases_PagesOverEveryLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	var want []string
	for i := range 7 {
		name := fmt.Sprintf("node-%d", i)
		want = append(want, leaseName(name))
		f.beat(1, holder(name, "1"))
	}
	alive := []leasev1.Lease_State{leasev1.Lease_STATE_SUSPECT, leasev1.Lease_STATE_ALIVE}
	for _, parent := range []string{"", "namespaces/-", "namespaces/kube-node-lease"} {
		request := &leasev1.ListLeasesRequest{Parent: parent, PageSize: 3, States: alive}
		var got []string
		for pages := 1; ; pages++ {
			response, err := f.leases.ListLeases(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			expectSource(t, response.Sources, 1, f.allShards()...)
			if first := pages == 1; (response.ResumeToken != "") != first {
				t.Errorf("page %d has resume token %q", pages, response.ResumeToken)
			}
			for _, lease := range response.Leases {
				got = append(got, lease.Name)
			}
			if request.PageToken = response.NextPageToken; request.PageToken == "" {
				break
			}
		}
		if !slices.Equal(want, got) {
			t.Errorf("parent %q: got %v, want %v", parent, got, want)
		}
	}
	for _, request := range []*leasev1.ListLeasesRequest{
		{Parent: "namespaces/elsewhere"}, {States: []leasev1.Lease_State{leasev1.Lease_STATE_EXPIRED}},
	} {
		response, err := f.leases.ListLeases(t.Context(), request)
		if err != nil || len(response.Leases) > 0 || response.NextPageToken != "" {
			t.Errorf("%v: got %v, error %v; want nothing", request, response, err)
		}
	}
}

func TestListLeases_RejectsForeignTokensAndBadArguments(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("n1", "1"), holder("n2", "1"))
	first, err := f.leases.ListLeases(t.Context(), &leasev1.ListLeasesRequest{PageSize: 1})
	if err != nil || first.NextPageToken == "" {
		t.Fatalf("first page: %v, error %v", first, err)
	}
	token := first.NextPageToken
	for name, request := range map[string]*leasev1.ListLeasesRequest{
		"of another parent": {PageToken: token, Parent: "namespaces/kube-node-lease"},
		"of another state":  {PageToken: token, States: []leasev1.Lease_State{leasev1.Lease_STATE_ALIVE}},
		"tampered with":     {PageToken: token[:len(token)-1] + "_"},
		"forged":            {PageToken: "bmFtZXNwYWNlcy9rdWJlLW5vZGUtbGVhc2UvbGVhc2VzL24x"},
		"not base64":        {PageToken: "!"},
	} {
		_, err := f.leases.ListLeases(t.Context(), request)
		expectError(t, name, err, codes.InvalidArgument, "INVALID_PAGE_TOKEN")
	}
	for name, request := range map[string]*leasev1.ListLeasesRequest{
		"negative page size": {PageSize: -1},
		"unknown state":      {States: []leasev1.Lease_State{99}},
		"unspecified state":  {States: []leasev1.Lease_State{0}},
		"invalid parent":     {Parent: "n1"},
	} {
		_, err := f.leases.ListLeases(t.Context(), request)
		expectError(t, name, err, codes.InvalidArgument, "VALIDATION_FAILED")
	}
	if huge, err := f.leases.ListLeases(t.Context(), &leasev1.ListLeasesRequest{PageSize: 1 << 30}); err != nil || len(huge.Leases) != 2 {
		t.Errorf("a huge page size is limited: got %v, error %v", huge, err)
	}
}
