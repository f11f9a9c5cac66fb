package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// nodeAPIFixture is a newShardFixture with node health and one ready Node in each shard.
type nodeAPIFixture struct {
	*fixture
	nodes []string // by shard
}

func newNodeAPIFixture(t *testing.T) *nodeAPIFixture {
	t.Helper()
	kube := fake.NewClientset()
	f := &nodeAPIFixture{fixture: newShardFixture(t, setup{kube: kube, loops: []string{leasesvc.NodeHealthLoop}})}
	f.nodes = f.names()
	for i, name := range f.nodes {
		node := nodeObject(name)
		node.ResourceVersion = fmt.Sprint(i + 1)
		node.Labels = map[string]string{corev1.LabelTopologyRegion: "eu", corev1.LabelTopologyZone: []string{"a", "b"}[i%2]}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.eventually(func() error {
		for _, name := range f.nodes[:2] {
			if _, err := f.getHealth(name); err != nil {
				return err
			}
		}
		return nil
	})
	return f
}

func (f *nodeAPIFixture) getHealth(name string) (*leasev1.NodeHealth, error) {
	response, err := f.health.GetNodeHealth(f.t.Context(), &leasev1.GetNodeHealthRequest{Name: "nodes/" + name})
	return response.GetNode(), err
}

func TestNodeHealthService_FailsWithoutItsLoop(t *testing.T) {
	f := newFixture(t, setup{})
	for what, call := range map[string]func() error{
		"get": func() error {
			_, err := f.health.GetNodeHealth(t.Context(), &leasev1.GetNodeHealthRequest{Name: "nodes/n1"})
			return err
		},
		"list": func() error {
			_, err := f.health.ListNodeHealth(t.Context(), &leasev1.ListNodeHealthRequest{})
			return err
		},
		"zones": func() error {
			_, err := f.health.ListZones(t.Context(), &leasev1.ListZonesRequest{})
			return err
		},
		"explain": func() error {
			_, err := f.health.ExplainNodeHealth(t.Context(), &leasev1.ExplainNodeHealthRequest{Name: "nodes/n1"})
			return err
		},
		"watch": func() error {
			stream, err := f.health.WatchNodeHealth(t.Context(), &leasev1.WatchNodeHealthRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	} {
		expectError(t, what, call(), codes.FailedPrecondition, "LOOP_DISABLED")
	}
}

func TestGetNodeHealth_NamesTheOwnersOfOtherShards(t *testing.T) {
	f := newNodeAPIFixture(t)
	want := &leasev1.NodeHealth{
		Name: "nodes/" + f.nodes[0], Health: leasev1.NodeHealth_HEALTH_READY, Zone: "eu:a", Ready: "True",
		Reason: "It gives signs of life, and its kubelet says that it is ready.",
		Uid:    "uid-of-" + f.nodes[0], Epoch: 10,
	}
	got, err := f.getHealth(f.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&leasev1.NodeHealth{},
		"sign_time", "deadline", "change_time", "resource_version")); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	_, err = f.getHealth(f.nodes[2])
	expectError(t, "a node of another replica", err, codes.Unavailable, "NOT_LEADER")
	if to := rpcerror.MetadataOf(err, "redirect_address"); to != "there:7601" {
		t.Errorf("the owner is %q, want there:7601", to)
	}
	_, err = f.getHealth(f.nodes[3])
	expectError(t, "a node of a shard without an owner", err, codes.Unavailable, "NOT_LEADER")
	_, err = f.getHealth(f.nameIn(1, "missing"))
	expectError(t, "a node that does not exist", err, codes.NotFound, "NODE_NOT_FOUND")
	for _, name := range []string{"", "UPPER", "../x", "a b"} {
		_, err := f.getHealth(name)
		expectError(t, "node "+name, err, codes.InvalidArgument, "VALIDATION_FAILED")
	}
}

func TestGetNodeHealth_ShowsTheSession(t *testing.T) {
	f := newNodeAPIFixture(t)
	begin := time.Now()
	f.eventually(func() error {
		f.beat(1, holder(f.nodes[0], "1")) // rejected until the shard is served
		got, err := f.getHealth(f.nodes[0])
		if err == nil && (got.Session != leasev1.Lease_STATE_ALIVE || got.SignSource != leasev1.NodeHealth_SIGN_SOURCE_SESSION || got.Deadline != nil) {
			err = fmt.Errorf("session %v, sign %v, deadline %v", got.Session, got.SignSource, got.Deadline)
		}
		if err == nil && got.SignTime.AsTime().Before(begin) {
			err = fmt.Errorf("last sign at %v, want the beat", got.SignTime.AsTime())
		}
		return err
	})
}

func TestListNodeHealth_ReturnsThePagesOfTheHeldShards(t *testing.T) {
	f := newNodeAPIFixture(t)
	here := slices.Sorted(slices.Values([]string{"nodes/" + f.nodes[0], "nodes/" + f.nodes[1]}))
	list := func(request *leasev1.ListNodeHealthRequest) (names []string, token string) {
		response, err := f.health.ListNodeHealth(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range response.Nodes {
			names = append(names, n.Name)
		}
		return names, response.NextPageToken
	}
	if got, token := list(&leasev1.ListNodeHealthRequest{}); !slices.Equal(got, here) || token != "" {
		t.Errorf("all: %v %q, want %v", got, token, here)
	}
	first, token := list(&leasev1.ListNodeHealthRequest{PageSize: 1})
	second, last := list(&leasev1.ListNodeHealthRequest{PageSize: 1, PageToken: token})
	if got := slices.Concat(first, second); !slices.Equal(got, here) || last != "" {
		t.Errorf("pages of one: %v %q, want %v", got, last, here)
	}
	if got, _ := list(&leasev1.ListNodeHealthRequest{Zone: "eu:b"}); !slices.Equal(got, []string{"nodes/" + f.nodes[1]}) {
		t.Errorf("zone eu:b: %v", got)
	}
	if got, _ := list(&leasev1.ListNodeHealthRequest{Health: leasev1.NodeHealth_HEALTH_UNKNOWN}); got != nil {
		t.Errorf("unknown: %v", got)
	}
	_, err := f.health.ListNodeHealth(t.Context(), &leasev1.ListNodeHealthRequest{PageSize: 1, PageToken: token, Zone: "eu:b"})
	expectError(t, "token of another list", err, codes.InvalidArgument, "INVALID_PAGE_TOKEN")
}

func TestListZones_IsAnsweredByTheHolderOfShard0(t *testing.T) {
	f := newNodeAPIFixture(t)
	zone := func(name string) *leasev1.Zone {
		return &leasev1.Zone{Name: name, State: leasev1.Zone_STATE_NORMAL, Nodes: 2, TaintRate: 0.1}
	}
	want := []*leasev1.Zone{zone("eu:a"), zone("eu:b")} // of the nodes of all shards
	f.eventually(func() error {
		response, err := f.health.ListZones(t.Context(), &leasev1.ListZonesRequest{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, response.Zones, protocmp.Transform()); diff != "" {
			return errors.New("zones (-want +got):\n" + diff)
		}
		return nil
	})
	f.lose(0, "there:7601")
	_, err := f.health.ListZones(t.Context(), &leasev1.ListZonesRequest{})
	expectError(t, "zones of another replica", err, codes.Unavailable, "NOT_LEADER")
	if to := rpcerror.MetadataOf(err, "redirect_address"); to != "there:7601" {
		t.Errorf("the owner is %q, want there:7601", to)
	}
}

func TestWatchNodeHealth_FollowsNodesAndShards(t *testing.T) {
	f := newNodeAPIFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := f.health.WatchNodeHealth(ctx, &leasev1.WatchNodeHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.Type == leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK {
			return "bookmark"
		}
		return fmt.Sprintf("%v %s %v", event.Type, event.Node.Name, event.Node.Health)
	}
	named := func(what, name, health string) string {
		return fmt.Sprintf("TYPE_%s nodes/%s HEALTH_%s", what, name, health)
	}
	want := []string{named("ADDED", f.nodes[0], "READY"), named("ADDED", f.nodes[1], "READY")}
	if got := []string{next(), next()}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("first events %v, want %v", got, want)
	}
	if got := next(); got != "bookmark" {
		t.Errorf("then %s, want a bookmark", got)
	}
	node, err := f.kube.CoreV1().Nodes().Get(t.Context(), f.nodes[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions[0].Status = corev1.ConditionFalse
	node.ResourceVersion = "100"
	if _, err := f.kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for got := next(); got != named("MODIFIED", f.nodes[0], "NOT_READY"); got = next() {
		t.Log(got)
	}
	f.lose(1, "there:7601")
	for got := next(); got != named("DELETED", f.nodes[1], "UNSPECIFIED"); got = next() {
		t.Log(got)
	}
	f.leadership.hold(1, 12)
	for got := next(); got != named("ADDED", f.nodes[1], "READY"); got = next() {
		t.Log(got)
	}
}

func TestExplainNodeHealth_ReturnsAllEvidence(t *testing.T) {
	f := newNodeAPIFixture(t)
	var response *leasev1.ExplainNodeHealthResponse
	f.eventually(func() (err error) {
		f.beat(1, holder(f.nodes[1], "boot-7")) // rejected until the shard is served
		response, err = f.health.ExplainNodeHealth(t.Context(), &leasev1.ExplainNodeHealthRequest{Name: "nodes/" + f.nodes[1]})
		switch {
		case err != nil:
			return err
		case response.Evidence[0].Verdict != statusv1.Evidence_VERDICT_GOOD:
			return errors.New("session: " + response.Evidence[0].Finding)
		case response.Evidence[3].Verdict != statusv1.Evidence_VERDICT_GOOD:
			return errors.New("Lease: " + response.Evidence[3].Finding)
		}
		return nil
	})
	var chain []string
	for _, e := range response.Evidence {
		chain = append(chain, e.Code)
		if e.ReplicaId != member.ID || e.Finding == "" || e.ObserveTime == nil {
			t.Errorf("evidence %v is incomplete", e)
		}
	}
	want := []string{"SESSION", "LAST_BEAT", "DEADLINE", "LEASE_OBJECT", "READY_CONDITION", "NO_SCHEDULE_TAINT", "ZONE", "NO_EXECUTE_TAINT", "PODS", "EVICTION"}
	if diff := cmp.Diff(want, chain); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	if response.FirstBroken != -1 || response.Node.GetHealth() != leasev1.NodeHealth_HEALTH_READY {
		t.Errorf("first broken %d, health %v", response.FirstBroken, response.Node.GetHealth())
	}
	_, err := f.health.ExplainNodeHealth(t.Context(), &leasev1.ExplainNodeHealthRequest{Name: "nodes/" + f.nodes[2]})
	expectError(t, "a node of another replica", err, codes.Unavailable, "NOT_LEADER")
}
