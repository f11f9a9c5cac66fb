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

// ground is an estate with one ready Node in each of its shards, and node-health on.
type ground struct {
	*estate
	nodes []string // by shard
}

func newGround(t *testing.T) *ground {
	g := &ground{estate: &estate{house: newHouse(4)}}
	g.fixture = newFixture(t, setup{
		leadership: g.house, kube: fake.NewClientset(), loops: []string{leasesvc.NodeHealthLoop},
		config: func(c *leasesvc.Config) { c.Shards = 4 },
	})
	g.house.take(0, 10)
	g.house.take(1, 11)
	g.house.give(2, "there:7601")
	g.nodes = g.names()
	for i, name := range g.nodes {
		node := nodeObject(name)
		node.ResourceVersion = fmt.Sprint(i + 1)
		node.Labels = map[string]string{corev1.LabelTopologyRegion: "eu", corev1.LabelTopologyZone: []string{"a", "b"}[i%2]}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		if _, err := g.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually(func() error {
		for _, name := range g.nodes[:2] {
			if _, err := g.get(name); err != nil {
				return err
			}
		}
		return nil
	})
	return g
}

func (g *ground) get(name string) (*leasev1.NodeHealth, error) {
	response, err := g.health.GetNodeHealth(g.t.Context(), &leasev1.GetNodeHealthRequest{Name: "nodes/" + name})
	return response.GetNode(), err
}

func TestNodeHealthService_IsRefusedWhereTheLoopIsOff(t *testing.T) {
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

func TestGetNodeHealth_AnswersForItsShardsAndNamesTheOwnersOfOthers(t *testing.T) {
	g := newGround(t)
	want := &leasev1.NodeHealth{
		Name: "nodes/" + g.nodes[0], Health: leasev1.NodeHealth_HEALTH_READY, Zone: "eu:a", Ready: "True",
		Reason: "It gives signs of life, and its kubelet says that it is ready.",
		Uid:    "uid-of-" + g.nodes[0], Epoch: 10,
	}
	got, err := g.get(g.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&leasev1.NodeHealth{},
		"sign_time", "deadline", "change_time", "resource_version")); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	_, err = g.get(g.nodes[2])
	expectError(t, "a node of another replica", err, codes.Unavailable, "NOT_LEADER")
	if to := rpcerror.MetadataOf(err, "grpc_address"); to != "there:7601" {
		t.Errorf("the owner is %q, want there:7601", to)
	}
	_, err = g.get(g.nodes[3])
	expectError(t, "a node of nobody", err, codes.Unavailable, "NOT_LEADER")
	_, err = g.get(g.nameIn(1, "missing"))
	expectError(t, "a node that does not exist", err, codes.NotFound, "NODE_NOT_FOUND")
	for _, name := range []string{"", "UPPER", "../x", "a b"} {
		_, err := g.get(name)
		expectError(t, "node "+name, err, codes.InvalidArgument, "VALIDATION_FAILED")
	}
}

func TestGetNodeHealth_ShowsTheSession(t *testing.T) {
	g := newGround(t)
	begin := time.Now()
	g.eventually(func() error {
		g.beat(1, holder(g.nodes[0], "1")) // refused until the shard is served
		got, err := g.get(g.nodes[0])
		if err == nil && (got.Session != leasev1.Lease_STATE_ALIVE || got.SignSource != leasev1.NodeHealth_SIGN_SOURCE_SESSION || got.Deadline != nil) {
			err = fmt.Errorf("session %v, sign %v, deadline %v", got.Session, got.SignSource, got.Deadline)
		}
		if err == nil && got.SignTime.AsTime().Before(begin) {
			err = fmt.Errorf("last sign at %v, want the beat", got.SignTime.AsTime())
		}
		return err
	})
}

func TestListNodeHealth_PagesItsShards(t *testing.T) {
	g := newGround(t)
	here := slices.Sorted(slices.Values([]string{"nodes/" + g.nodes[0], "nodes/" + g.nodes[1]}))
	list := func(request *leasev1.ListNodeHealthRequest) (names []string, token string) {
		response, err := g.health.ListNodeHealth(t.Context(), request)
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
	if got, _ := list(&leasev1.ListNodeHealthRequest{Zone: "eu:b"}); !slices.Equal(got, []string{"nodes/" + g.nodes[1]}) {
		t.Errorf("zone eu:b: %v", got)
	}
	if got, _ := list(&leasev1.ListNodeHealthRequest{Health: leasev1.NodeHealth_HEALTH_UNKNOWN}); got != nil {
		t.Errorf("unknown: %v", got)
	}
	_, err := g.health.ListNodeHealth(t.Context(), &leasev1.ListNodeHealthRequest{PageSize: 1, PageToken: token, Zone: "eu:b"})
	expectError(t, "token of another list", err, codes.InvalidArgument, "INVALID_PAGE_TOKEN")
}

func TestListZones_IsForTheHolderOfShard0(t *testing.T) {
	g := newGround(t)
	zone := func(name string) *leasev1.Zone {
		return &leasev1.Zone{Name: name, State: leasev1.Zone_STATE_NORMAL, Nodes: 2, TaintRate: 0.1}
	}
	want := []*leasev1.Zone{zone("eu:a"), zone("eu:b")} // of nodes of all shards
	g.eventually(func() error {
		response, err := g.health.ListZones(t.Context(), &leasev1.ListZonesRequest{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, response.Zones, protocmp.Transform()); diff != "" {
			return errors.New("zones (-want +got):\n" + diff)
		}
		return nil
	})
	g.lose(0, "there:7601")
	_, err := g.health.ListZones(t.Context(), &leasev1.ListZonesRequest{})
	expectError(t, "zones of another replica", err, codes.Unavailable, "NOT_LEADER")
	if to := rpcerror.MetadataOf(err, "grpc_address"); to != "there:7601" {
		t.Errorf("the owner is %q, want there:7601", to)
	}
}

func TestWatchNodeHealth_FollowsNodesAndShards(t *testing.T) {
	g := newGround(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := g.health.WatchNodeHealth(ctx, &leasev1.WatchNodeHealthRequest{})
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
	want := []string{named("ADDED", g.nodes[0], "READY"), named("ADDED", g.nodes[1], "READY")}
	if got := []string{next(), next()}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("first events %v, want %v", got, want)
	}
	if got := next(); got != "bookmark" {
		t.Errorf("then %s, want a bookmark", got)
	}
	node, err := g.kube.CoreV1().Nodes().Get(t.Context(), g.nodes[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions[0].Status = corev1.ConditionFalse
	node.ResourceVersion = "100"
	if _, err := g.kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for got := next(); got != named("MODIFIED", g.nodes[0], "NOT_READY"); got = next() {
		t.Log(got)
	}
	g.lose(1, "there:7601")
	for got := next(); got != named("DELETED", g.nodes[1], "UNSPECIFIED"); got = next() {
		t.Log(got)
	}
	g.house.take(1, 12)
	for got := next(); got != named("ADDED", g.nodes[1], "READY"); got = next() {
		t.Log(got)
	}
}

func TestExplainNodeHealth_ReturnsTheWholeChain(t *testing.T) {
	g := newGround(t)
	var response *leasev1.ExplainNodeHealthResponse
	g.eventually(func() (err error) {
		g.beat(1, holder(g.nodes[1], "boot-7")) // refused until the shard is served
		response, err = g.health.ExplainNodeHealth(t.Context(), &leasev1.ExplainNodeHealthRequest{Name: "nodes/" + g.nodes[1]})
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
			t.Errorf("link %v is not whole", e)
		}
	}
	want := []string{"SESSION", "LAST_BEAT", "DEADLINE", "LEASE_OBJECT", "READY_CONDITION", "NO_SCHEDULE_TAINT", "ZONE", "NO_EXECUTE_TAINT", "PODS", "EVICTION"}
	if diff := cmp.Diff(want, chain); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	if response.FirstBroken != -1 || response.Node.GetHealth() != leasev1.NodeHealth_HEALTH_READY {
		t.Errorf("first broken %d, health %v", response.FirstBroken, response.Node.GetHealth())
	}
	_, err := g.health.ExplainNodeHealth(t.Context(), &leasev1.ExplainNodeHealthRequest{Name: "nodes/" + g.nodes[2]})
	expectError(t, "a node of another replica", err, codes.Unavailable, "NOT_LEADER")
}
