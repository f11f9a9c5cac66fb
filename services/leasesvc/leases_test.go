package leasesvc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func granted() *leasev1.HeartbeatResult {
	return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Grant{Grant: grant()}}
}

func rejectedBeat(reason string) *leasev1.HeartbeatResult {
	return &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Rejection{Rejection: rejection(reason)}}
}

func expectResults(t *testing.T, want, got []*leasev1.HeartbeatResult) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&leasev1.Rejection{}, "message", "retry_after"),
		protocmp.IgnoreFields(&leasev1.Grant{}, "next_interval", "ttl")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHeartbeat_AnswersEachItemInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: func(c *leasesvc.Config) { c.MaxSessions = 2 }})
	unknown := &leasev1.Holder{Class: "toaster", Name: "n1", BootId: "1"}
	expectResults(t,
		[]*leasev1.HeartbeatResult{granted(), rejectedBeat("UNKNOWN_CLASS"), granted(), rejectedBeat("TOO_MANY_HOLDERS")},
		f.beat(1, holder("n1", "1"), unknown, holder("n2", "1"), holder("n3", "1")))
	expectResults(t,
		[]*leasev1.HeartbeatResult{granted(), rejectedBeat("SUPERSEDED")},
		f.beat(2, holder("n1", "2"), holder("n1", "1")))
}

func TestHeartbeat_RenewalGrantsTheWholeIntervalAndTTL(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("n1", "1"))
	if diff := cmp.Diff([]*leasev1.HeartbeatResult{granted()}, f.beat(2, holder("n1", "1")), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHeartbeat_RepeatedSequenceRenewsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(5, holder("n1", "1"))
	before := f.get("n1")
	f.eventually(func() error { // the time of a beat is rounded up to a millisecond
		again := f.beat(5, holder("n1", "1"))[0].GetGrant()
		if again == nil || again.Ttl.AsDuration() >= 20*time.Second {
			return fmt.Errorf("repeated: grant %v, want what is left of 20 s", again)
		}
		return nil
	})
	// Each response converts monotonic to wall-clock times, which differ by microseconds.
	if after := f.get("n1"); after.Sequence != 5 || after.ExpireTime.AsTime().Sub(before.ExpireTime.AsTime()).Abs() > time.Millisecond {
		t.Errorf("deadline moved from %v to %v", before.ExpireTime.AsTime(), after.ExpireTime.AsTime())
	}
}

func TestHeartbeat_InvalidRequestNamesTheField(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	for path, request := range map[string]*leasev1.HeartbeatRequest{
		"beats":                    {},
		"beats[0].holder":          {Beats: []*leasev1.Beat{{}}},
		"beats[0].holder.name":     {Beats: []*leasev1.Beat{{Holder: holder("UPPER", "1")}}},
		"beats[0].holder.boot_id":  {Beats: []*leasev1.Beat{{Holder: holder("n1", "")}}},
		"beats[0].holder.name too": {Beats: []*leasev1.Beat{{Holder: holder(strings.Repeat("a", 254), "1")}}},
	} {
		_, err := f.client.Heartbeat(t.Context(), request)
		expectError(t, path, err, codes.InvalidArgument, "VALIDATION_FAILED")
		if field := strings.TrimSuffix(path, " too"); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}

func TestReleaseLease_DeletesTheObjectThenTheSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("n1", "1"))
	f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN)
	_, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "2")})
	expectError(t, "by another boot", err, codes.Aborted, "SUPERSEDED")
	for range 2 { // the second time there is no session
		if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "1")}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = f.kube.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "n1", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("get the object: error %v, want not found", err)
	}
	_, err = f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
	expectError(t, "get the session", err, codes.NotFound, "LEASE_NOT_FOUND")
}

func TestReleaseLease_ChecksTheETagAndMayOnlyValidate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("n1", "1"))
	old := f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN).Etag
	f.beat(1, holder("n1", "2"))
	release := func(boot, etag string, validateOnly bool) error {
		_, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", boot), Etag: etag, ValidateOnly: validateOnly})
		return err
	}
	for _, validateOnly := range []bool{true, false} {
		expectError(t, "the etag of an earlier boot", release("2", old, validateOnly), codes.Aborted, "ETAG_MISMATCH")
		expectError(t, "an earlier boot", release("1", old, validateOnly), codes.Aborted, "SUPERSEDED")
	}
	current := f.get("n1").Etag
	for _, etag := range []string{"", current} {
		if err := release("2", etag, true); err != nil {
			t.Errorf("validate with etag %q: %v", etag, err)
		}
	}
	if _, err := f.kube.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || f.get("n1").State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("after calls that failed or only validated: error %v, lease %v", err, f.get("n1"))
	}
	if err := release("2", current, false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.kube.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the object: error %v, want not found", err)
	}
	if err := release("2", current, true); err != nil {
		t.Errorf("validate the release of a lease that is gone: %v", err)
	}
}

func TestReleaseLease_FailedDeleteKeepsTheSession(t *testing.T) {
	t.Parallel()
	kube := fake.NewClientset(nodeObject("n1"))
	kube.PrependReactor("delete", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("injected by the test")
	})
	f := newFixture(t, setup{kube: kube})
	f.beat(1, holder("n1", "1"))
	f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN)
	_, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "1")})
	expectError(t, "release", err, codes.Unavailable, "LEASE_NOT_DELETED")
	if got := f.get("n1").State; got != leasev1.Lease_STATE_ALIVE {
		t.Errorf("the session is %v, want alive", got)
	}
}

func TestService_LeaseIsWrittenOnceItsNodeExists(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("late", "1"))
	f.awaitWrite("late", leasev1.Lease_Write_STATE_NO_OWNER)
	if _, err := f.kube.CoreV1().Nodes().Create(t.Context(), nodeObject("late"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.awaitWrite("late", leasev1.Lease_Write_STATE_WRITTEN)
	if got := f.service.Counts()["lease_writes"]; got != 1 {
		t.Errorf("%d writes counted, want 1", got)
	}
}

func TestService_NewTermStartsWithoutSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	f.beat(1, holder("n1", "1"))
	f.candidate.Lose()
	f.awaitShard(0, rpcerror.NoLeaderReason)
	f.candidate.Regain()
	f.awaitLeading()
	list, err := f.leases.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})
	if err != nil || len(list.Leases) > 0 {
		t.Errorf("sessions %v, error %v; want none", list, err)
	}
	if got := f.beat(1, holder("n1", "1"))[0].GetGrant(); got.GetEpoch() != 2 {
		t.Errorf("registered with %v, want epoch 2", got)
	}
}

func TestService_SilentHolderIsSuspectThenExpired(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: func(c *leasesvc.Config) {
		c.Classes[0].HeartbeatInterval, c.Classes[0].RenewInterval = 100*time.Millisecond, 100*time.Millisecond
		c.Classes[0].Grace, c.Classes[0].LeaseDuration = time.Second, time.Second
	}})
	f.beat(1, holder("n1", "1"))
	written := f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN)
	for _, want := range []leasev1.Lease_State{leasev1.Lease_STATE_SUSPECT, leasev1.Lease_STATE_EXPIRED} {
		f.eventually(func() error {
			if got := f.get("n1").State; got != want {
				return fmt.Errorf("n1 is %v, not %v", got, want)
			}
			return nil
		})
	}
	after := f.get("n1")
	written.Write.DueTime = nil // no write is due for a silent holder
	if diff := cmp.Diff(written.Write, after.Write, protocmp.Transform()); diff != "" {
		t.Errorf("the object of an expired holder was written:\n%s", diff)
	}
	if got := f.beat(1, holder("n1", "1"))[0].GetGrant().GetTtl().AsDuration(); got != 0 {
		t.Errorf("a repeated beat of an expired session has %v left", got)
	}
}
