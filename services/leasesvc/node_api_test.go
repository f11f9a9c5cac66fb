package leasesvc_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	apiv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

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

func (f *nodeAPIFixture) getHealth(name string) (*nodev1.NodeHealth, error) {
	response, err := f.health.GetNodeHealth(f.t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/" + name})
	return response.GetNode(), err
}

func TestNodeHealthService_FailsWithoutItsLoop(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	for what, call := range map[string]func() error{
		"get": func() error {
			_, err := f.health.GetNodeHealth(t.Context(), &nodev1.GetNodeHealthRequest{Name: "nodes/n1"})
			return err
		},
		"list": func() error {
			_, err := f.health.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{})
			return err
		},
		"zones": func() error {
			_, err := f.health.ListZones(t.Context(), &nodev1.ListZonesRequest{})
			return err
		},
		"zone": func() error {
			_, err := f.health.GetZone(t.Context(), &nodev1.GetZoneRequest{Name: "zones/none"})
			return err
		},
		"explain": func() error {
			_, err := f.health.ExplainNodeHealth(t.Context(), &nodev1.ExplainNodeHealthRequest{Name: "nodes/n1"})
			return err
		},
		"watch": func() error {
			stream, err := f.health.WatchNodeHealth(t.Context(), &nodev1.WatchNodeHealthRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	} {
		expectError(t, what, call(), codes.FailedPrecondition, "LOOP_DISABLED")
	}
}

func TestGetNodeHealth_NamesTheLeadersOfOtherShards(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	want := &nodev1.NodeHealth{
		Name: "nodes/" + f.nodes[0], Health: nodev1.NodeHealth_HEALTH_READY, Zone: "zones/eu:a", Ready: "True",
		Reason: "SIGNALS_RECEIVED", Message: "It gives signals of life, and its kubelet says that it is ready.",
		Uid: "uid-of-" + f.nodes[0], Owner: &apiv1.Owner{ReplicaId: member.ID, Shard: new(int32), Epoch: 10},
	}
	got, err := f.getHealth(f.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&nodev1.NodeHealth{},
		"signals", "change_time", "resource_version")); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	_, err = f.getHealth(f.nodes[2])
	expectError(t, "a node of another replica", err, codes.FailedPrecondition, "NOT_LEADER")
	if to := rpcerror.MetadataOf(err, "redirect_address"); to != "there:7601" {
		t.Errorf("the leader is %q, want there:7601", to)
	}
	_, err = f.getHealth(f.nodes[3])
	expectError(t, "a node of a shard without a leader", err, codes.Unavailable, "NO_LEADER")
	_, err = f.getHealth(f.nameIn(1, "missing"))
	expectError(t, "a node that does not exist", err, codes.NotFound, "NODE_NOT_FOUND")
	for _, name := range []string{"", "UPPER", "../x", "a b"} {
		_, err := f.getHealth(name)
		expectError(t, "node "+name, err, codes.InvalidArgument, "VALIDATION_FAILED")
	}
}

func TestNodeHealth_ShowsTheSignalsAndTheAgent(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	got, err := f.getHealth(f.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Signals; len(s) != 1 || s[0].Source != nodev1.SignalSource_SIGNAL_SOURCE_NONE || s[0].SeenTime == nil || s[0].ExpireTime == nil {
		t.Errorf("signals %v, want the begin of the grace period", s)
	}
	stream, sequence := f.open(), uint64(0)
	watched := f.watch(&nodev1.WatchNodeHealthRequest{})
	begin := time.Now()
	f.eventually(func() error {
		sequence++ // rejected until the shard is served
		exchange(t, stream, &leasev1.StreamHeartbeatsRequest{
			Sequence: sequence, ClientInfo: &apiv1.ClientInfo{Agent: "trivet-agent", Version: "v1", Mode: "probe"},
			Registrations: []*leasev1.Registration{{Holder: holder(f.nodes[0], "1")}},
		})
		got, err := f.getHealth(f.nodes[0])
		if err != nil {
			return err
		}
		if got.LeaseState != leasev1.Lease_STATE_ALIVE || len(got.Signals) != 2 {
			return fmt.Errorf("lease %v, signals %v", got.LeaseState, got.Signals)
		}
		kubelet, agent := got.Signals[0], got.Signals[1]
		if kubelet.Source != nodev1.SignalSource_SIGNAL_SOURCE_KUBELET || agent.Source != nodev1.SignalSource_SIGNAL_SOURCE_AGENT {
			t.Errorf("signals %v, want those of kubelet and agent", got.Signals)
		}
		if kubelet.SeenTime.AsTime().Before(begin) || agent.SeenTime.AsTime().Before(begin) {
			t.Errorf("signals %v, want those of the beat", got.Signals)
		}
		if left := time.Until(kubelet.ExpireTime.AsTime()); left <= 0 || left > 20*time.Second+time.Millisecond || agent.ExpireTime != nil {
			t.Errorf("the kubelet's signal expires in %v, the agent's at %v", left, agent.ExpireTime)
		}
		return nil
	})
	list, err := f.health.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Nodes, func(n *nodev1.NodeHealth) bool { return n.Name == "nodes/"+f.nodes[0] })
	listed := list.Nodes[i]
	if s := listed.Signals; len(s) != 2 || s[0].SeenTime.AsTime().Before(begin) || s[1].SeenTime.AsTime().Before(begin) {
		t.Errorf("signals %v in a list, want those of the beat", listed.Signals)
	}
	event := watched.awaitNode("nodes/"+f.nodes[0], leasev1.Lease_STATE_ALIVE)
	if s := event.Signals; len(s) != 2 || s[0].SeenTime != nil || s[1].SeenTime != nil {
		t.Errorf("signals %v in a watch, want them without times", event.Signals)
	}
	want := &leasev1.Lease_Agent{Name: "trivet-agent", Version: "v1", Mode: "probe"}
	for what, node := range map[string]*nodev1.NodeHealth{"list": listed, "watch": event} {
		if diff := cmp.Diff(want, node.Agent, protocmp.Transform()); diff != "" {
			t.Errorf("%s: agent (-want +got):\n%s", what, diff)
		}
	}
}

func TestListNodeHealth_ReturnsThePagesOfTheHeldShards(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	here := slices.Sorted(slices.Values([]string{"nodes/" + f.nodes[0], "nodes/" + f.nodes[1]}))
	list := func(request *nodev1.ListNodeHealthRequest) (names []string, token string) {
		response, err := f.health.ListNodeHealth(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		expectSource(t, response.Sources, 11, 0, 1)
		if caches := response.Sources[0].Caches; len(caches) != 2 || caches[0].Kind != "Lease" || caches[1].Kind != "Node" || caches[1].Lag == nil {
			t.Errorf("caches %v, want those of Leases and Nodes", caches)
		}
		if (response.ResumeToken == "") != (request.PageToken != "") {
			t.Errorf("resume token %q with page token %q", response.ResumeToken, request.PageToken)
		}
		for _, n := range response.Nodes {
			names = append(names, n.Name)
		}
		return names, response.NextPageToken
	}
	if got, token := list(&nodev1.ListNodeHealthRequest{}); !slices.Equal(got, here) || token != "" {
		t.Errorf("all: %v %q, want %v", got, token, here)
	}
	first, token := list(&nodev1.ListNodeHealthRequest{PageSize: 1})
	second, last := list(&nodev1.ListNodeHealthRequest{PageSize: 1, PageToken: token})
	if got := slices.Concat(first, second); !slices.Equal(got, here) || last != "" {
		t.Errorf("pages of one: %v %q, want %v", got, last, here)
	}
	if got, _ := list(&nodev1.ListNodeHealthRequest{Zones: []string{"zones/eu:b"}}); !slices.Equal(got, []string{"nodes/" + f.nodes[1]}) {
		t.Errorf("zone eu:b: %v", got)
	}
	if got, _ := list(&nodev1.ListNodeHealthRequest{Healths: []nodev1.NodeHealth_Health{nodev1.NodeHealth_HEALTH_UNKNOWN}}); got != nil {
		t.Errorf("unknown: %v", got)
	}
	_, err := f.health.ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{PageSize: 1, PageToken: token, Zones: []string{"zones/eu:b"}})
	expectError(t, "token of another list", err, codes.InvalidArgument, "INVALID_PAGE_TOKEN")
}

func wantZone(name string) *nodev1.Zone {
	return &nodev1.Zone{
		Name: name, State: nodev1.Zone_STATE_NORMAL, NodeCount: 2, TaintsPerSecond: 0.1,
		Owner: &apiv1.Owner{ReplicaId: member.ID, Shard: new(int32), Epoch: 10},
	}
}

// awaitZones waits until the zones are those of the Nodes of all shards.
func (f *nodeAPIFixture) awaitZones() {
	f.t.Helper()
	want := []*nodev1.Zone{wantZone("zones/eu:a"), wantZone("zones/eu:b")}
	f.eventually(func() error {
		response, err := f.health.ListZones(f.t.Context(), &nodev1.ListZonesRequest{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, response.Zones, protocmp.Transform()); diff != "" {
			return errors.New("zones (-want +got):\n" + diff)
		}
		if len(response.Conditions) > 0 {
			return fmt.Errorf("conditions %v", response.Conditions)
		}
		return nil
	})
}

func TestZones_AreAnsweredByTheLeaderOfShard0(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	f.awaitZones()
	one, err := f.health.GetZone(t.Context(), &nodev1.GetZoneRequest{Name: "zones/eu:b"})
	if err != nil {
		t.Fatal(err)
	}
	expectSource(t, one.Sources, 10, 0)
	if diff := cmp.Diff(wantZone("zones/eu:b"), one.Zone, protocmp.Transform()); diff != "" {
		t.Errorf("zone (-want +got):\n%s", diff)
	}
	_, err = f.health.GetZone(t.Context(), &nodev1.GetZoneRequest{Name: "zones/none"})
	expectError(t, "a zone without nodes", err, codes.NotFound, "ZONE_NOT_FOUND")

	first, err := f.health.ListZones(t.Context(), &nodev1.ListZonesRequest{PageSize: 1})
	if err != nil || len(first.Zones) != 1 || first.ResumeToken == "" {
		t.Fatalf("first page %v, error %v", first, err)
	}
	second, err := f.health.ListZones(t.Context(), &nodev1.ListZonesRequest{PageSize: 1, PageToken: first.NextPageToken})
	if err != nil || len(second.Zones) != 1 || second.Zones[0].Name != "zones/eu:b" || second.NextPageToken != "" || second.ResumeToken != "" {
		t.Errorf("second page %v, error %v", second, err)
	}
	_, err = f.health.ListZones(t.Context(), &nodev1.ListZonesRequest{PageToken: "bmFtZXNwYWNlcy9"})
	expectError(t, "a token of another list", err, codes.InvalidArgument, "INVALID_PAGE_TOKEN")

	f.lose(0, "there:7601")
	for what, call := range map[string]func() error{
		"list": func() error {
			_, err := f.health.ListZones(t.Context(), &nodev1.ListZonesRequest{})
			return err
		},
		"get": func() error {
			_, err := f.health.GetZone(t.Context(), &nodev1.GetZoneRequest{Name: "zones/eu:b"})
			return err
		},
	} {
		err := call()
		expectError(t, what+" at another replica", err, codes.FailedPrecondition, "NOT_LEADER")
		if to := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey); to != "there:7601" {
			t.Errorf("%s: the leader is %q, want there:7601", what, to)
		}
	}
}

func TestWatchZones_FollowsZonesUntilTheTermEnds(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	f.awaitZones()
	list, err := f.health.ListZones(t.Context(), &nodev1.ListZonesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	watch := func(token string) func(want ...string) error {
		stream, err := f.health.WatchZones(t.Context(), &nodev1.WatchZonesRequest{ResumeToken: token})
		if err != nil {
			t.Fatal(err)
		}
		return func(want ...string) error {
			t.Helper()
			for _, text := range want {
				event, err := stream.Recv()
				if err != nil {
					return err
				}
				got := fmt.Sprintf("%v %s", event.Type, event.Zone.GetName())
				if b := event.Bookmark; b != nil {
					got = fmt.Sprintf("%v %v %t", event.Type, b.Sources[0].Shards, b.InitialEventsEnd)
				}
				if got != "EVENT_TYPE_"+text || event.ResumeToken == "" {
					t.Errorf("got %s, token %q; want %s with a token", got, event.ResumeToken, text)
				}
			}
			_, err := stream.Recv()
			return err
		}
	}
	fresh, resumed, bad := watch(""), watch(list.ResumeToken), watch("invalid")
	expectError(t, "an invalid token", bad(), codes.OutOfRange, "RESUME_TOKEN_EXPIRED")
	time.AfterFunc(time.Second, func() { f.leadership.release(0, "there:7601") })
	expectError(t, "a watch", fresh("ADDED zones/eu:a", "ADDED zones/eu:b", "BOOKMARK [0] true"), codes.FailedPrecondition, "NOT_LEADER")
	expectError(t, "a resumed watch", resumed("BOOKMARK [0] true"), codes.FailedPrecondition, "NOT_LEADER")
}

// nodeWatch reads the events of a watch as texts.
type nodeWatch struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[nodev1.WatchNodeHealthResponse]
	token  string // of the last event
}

func (f *nodeAPIFixture) watch(request *nodev1.WatchNodeHealthRequest) *nodeWatch {
	f.t.Helper()
	stream, err := f.health.WatchNodeHealth(f.t.Context(), request)
	if err != nil {
		f.t.Fatal(err)
	}
	return &nodeWatch{t: f.t.(*testing.T), stream: stream}
}

func (w *nodeWatch) next() string {
	w.t.Helper()
	event, err := w.stream.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	if w.token = event.ResumeToken; w.token == "" {
		w.t.Errorf("%v has no resume token", event)
	}
	if b := event.Bookmark; b != nil {
		return fmt.Sprintf("BOOKMARK %v %t", b.Sources[0].Shards, b.InitialEventsEnd)
	}
	what := strings.TrimPrefix(event.Type.String(), "EVENT_TYPE_")
	return fmt.Sprintf("%s %s %v %d", what, event.Node.Name, event.Node.Health, event.Node.Owner.GetEpoch())
}

// awaitNode skips events until a Node's lease has that state.
func (w *nodeWatch) awaitNode(name string, state leasev1.Lease_State) *nodev1.NodeHealth {
	w.t.Helper()
	for {
		event, err := w.stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		if node := event.Node; node.GetName() == name && node.LeaseState == state {
			return node
		}
	}
}

// await skips events until the wanted one.
func (w *nodeWatch) await(want string) {
	w.t.Helper()
	for got := w.next(); got != want; got = w.next() {
		w.t.Log(got)
	}
}

func (f *nodeAPIFixture) setReady(name, version string, ready corev1.ConditionStatus) {
	f.t.Helper()
	node, err := f.kube.CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	node.Status.Conditions[0].Status = ready
	node.ResourceVersion = version
	if _, err := f.kube.CoreV1().Nodes().UpdateStatus(f.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func TestWatchNodeHealth_FollowsNodesAndShards(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	all := f.watch(&nodev1.WatchNodeHealthRequest{})
	named := func(what, name, health string, epoch int) string {
		return fmt.Sprintf("%s nodes/%s HEALTH_%s %d", what, name, health, epoch)
	}
	want := slices.Sorted(slices.Values([]string{named("ADDED", f.nodes[0], "READY", 10), named("ADDED", f.nodes[1], "READY", 11)}))
	if got := []string{all.next(), all.next()}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("first events %v, want %v", got, want)
	}
	if got := all.next(); got != "BOOKMARK [0 1] true" {
		t.Errorf("then %s, want the first bookmark", got)
	}
	notReady := &nodev1.WatchNodeHealthRequest{Healths: []nodev1.NodeHealth_Health{nodev1.NodeHealth_HEALTH_NOT_READY}, Zones: []string{"zones/eu:a"}}
	filtered := f.watch(notReady)
	if got := filtered.next(); got != "BOOKMARK [0 1] true" {
		t.Errorf("a filtered watch begins with %s, want a bookmark", got)
	}
	f.setReady(f.nodes[0], "100", corev1.ConditionFalse)
	all.await(named("MODIFIED", f.nodes[0], "NOT_READY", 10))
	filtered.await(named("ADDED", f.nodes[0], "NOT_READY", 10))
	notReady.ResumeToken = filtered.token
	f.setReady(f.nodes[0], "101", corev1.ConditionTrue)
	all.await(named("MODIFIED", f.nodes[0], "READY", 10))
	filtered.await(named("DELETED", f.nodes[0], "UNSPECIFIED", 10))
	f.watch(notReady).await(named("DELETED", f.nodes[0], "UNSPECIFIED", 10))
	f.lose(1, "there:7601")
	for got := all.next(); got != "BOOKMARK [0] false"; got = all.next() {
		if strings.HasPrefix(got, "DELETED") {
			t.Errorf("got %s: a node of a lost shard is not deleted", got)
		}
	}
	f.leadership.hold(1, 12)
	all.await(named("ADDED", f.nodes[1], "READY", 12))
	all.await("BOOKMARK [0 1] false")
	token := all.token
	if err := f.kube.CoreV1().Nodes().Delete(t.Context(), f.nodes[1], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	all.await(named("DELETED", f.nodes[1], "UNSPECIFIED", 12))
	f.watch(&nodev1.WatchNodeHealthRequest{ResumeToken: token}).await(named("DELETED", f.nodes[1], "UNSPECIFIED", 12))
	_, err := f.watch(&nodev1.WatchNodeHealthRequest{ResumeToken: token, Zones: []string{"zones/eu:a"}}).stream.Recv()
	expectError(t, "a token of another watch", err, codes.OutOfRange, "RESUME_TOKEN_EXPIRED")
}

func TestExplainNodeHealth_ReturnsAllEvidence(t *testing.T) {
	t.Parallel()
	f := newNodeAPIFixture(t)
	var response *nodev1.ExplainNodeHealthResponse
	f.eventually(func() (err error) {
		f.beat(1, holder(f.nodes[1], "boot-7")) // rejected until the shard is served
		response, err = f.health.ExplainNodeHealth(t.Context(), &nodev1.ExplainNodeHealthRequest{Name: "nodes/" + f.nodes[1]})
		switch {
		case err != nil:
			return err
		case response.Evidence[0].Result != apiv1.Evidence_RESULT_OK:
			return errors.New("lease: " + response.Evidence[0].Message)
		case response.Evidence[3].Result != apiv1.Evidence_RESULT_OK:
			return errors.New("Lease: " + response.Evidence[3].Message)
		}
		return nil
	})
	var chain []string
	for _, e := range response.Evidence {
		chain = append(chain, e.Code)
		if e.ReplicaId != member.ID || e.Message == "" || e.ObserveTime == nil {
			t.Errorf("evidence %v is incomplete", e)
		}
	}
	want := []string{"LEASE", "LAST_BEAT", "EXPIRE_TIME", "LEASE_OBJECT", "READY_CONDITION", "NO_SCHEDULE_TAINT", "ZONE", "NO_EXECUTE_TAINT", "PODS", "EVICTION"}
	if diff := cmp.Diff(want, chain); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	if response.BrokenIndex != nil || response.Silence != nil || response.Node.GetHealth() != nodev1.NodeHealth_HEALTH_READY {
		t.Errorf("broken %v, silence %v, health %v", response.BrokenIndex, response.Silence, response.Node.GetHealth())
	}
	_, err := f.health.ExplainNodeHealth(t.Context(), &nodev1.ExplainNodeHealthRequest{Name: "nodes/" + f.nodes[2]})
	expectError(t, "a node of another replica", err, codes.FailedPrecondition, "NOT_LEADER")
}
