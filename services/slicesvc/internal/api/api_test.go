package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// fakeParts are the parts that a Server asks.
type fakeParts struct {
	Controller
	health   slicecontroller.Health
	shards   []term.ShardStatus
	caches   []kube.KindStatus
	unsynced error
}

func (f *fakeParts) Health() slicecontroller.Health { return f.health }

func (f *fakeParts) Status() term.Status { return term.Status{Shards: f.shards} }

func (f *fakeParts) server() *Server {
	return New(Config{
		ReplicaID:            "slicesvc-1",
		Controller:           f,
		Leadership:           f,
		SelectorDryRun:       func() bool { return false },
		MirrorDryRun:         func() bool { return false },
		CheckCaches:          func() error { return f.unsynced },
		Caches:               func() []kube.KindStatus { return f.caches },
		MaxEndpointsPerSlice: 100,
	})
}

func TestProblems_AreTheWorstFirst(t *testing.T) {
	now := time.Now()
	key := func(name string) slicecontroller.Key { return slicecontroller.Key{Namespace: "shop", Name: name} }
	heard := []kube.KindStatus{{Cache: answer.Cache{Kind: "Pod", Heard: now}}}
	for name, c := range map[string]struct {
		parts fakeParts
		// want has the code, the severity, the resource and a part of the message of each problem.
		want [][4]string
	}{
		"nothing": {parts: fakeParts{
			caches: heard,
			shards: []term.ShardStatus{{Shard: 0, Here: true, AcquireTime: now.Add(-time.Hour)}, {Shard: 1}, {Shard: 2, Here: true, AcquireTime: now}},
			health: slicecontroller.Health{Shards: []slicecontroller.HeldShard{{Shard: 0}}},
		}},
		"everything": {
			parts: fakeParts{
				caches: []kube.KindStatus{{Cache: answer.Cache{Kind: "Node", Heard: now}}, {Cache: answer.Cache{Kind: "Pod", Heard: now.Add(-time.Hour)}, Failure: errors.New("list pods: refused\xff")}},
				shards: []term.ShardStatus{{Shard: 0, Here: true, AcquireTime: now.Add(-time.Hour)}, {Shard: 1, Here: true}},
				health: slicecontroller.Health{
					Failing:   slicecontroller.ServiceGroup{Count: 7, First: []slicecontroller.Key{key("a"), key("b")}, Since: now, Cause: "quota", Latest: key("c")},
					Contended: slicecontroller.ServiceGroup{Count: 1, First: []slicecontroller.Key{key("web")}, Since: now, Cause: "other", Latest: key("web")},
					Shards:    []slicecontroller.HeldShard{{Shard: 0}, {Shard: 1, Blocked: errors.New("no list"), Since: now}},
				},
			},
			want: [][4]string{
				{"SHARD_BLOCKED", "SEVERITY_ERROR", "replicas/slicesvc-1", "leads shards 1 and does no work on them"},
				{"SLICE_SYNCS_FAILING", "SEVERITY_ERROR", "replicas/slicesvc-1", "7 Services (shop/a, shop/b, …) cannot"},
				{"WATCH_SILENT", "SEVERITY_UNKNOWN", "replicas/slicesvc-1", "list pods: refused"},
				{"SLICES_CONTENDED", "SEVERITY_WARNING", "namespaces/shop/serviceslices/web", `of shop/web it is "other"`},
			},
		},
		"caches are being filled, and the loop does not run": {
			parts: fakeParts{unsynced: errors.New("caches are being filled\nforbidden"), shards: []term.ShardStatus{{Shard: 0, Here: true, AcquireTime: now.Add(-time.Hour)}}},
			want: [][4]string{
				{"SHARD_BLOCKED", "SEVERITY_ERROR", "replicas/slicesvc-1", "has not begun"},
				{"CACHE_NOT_SYNCED", "SEVERITY_UNKNOWN", "replicas/slicesvc-1", "caches are being filled forbidden"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			problems := c.parts.server().Problems()
			var got [][4]string
			for i, problem := range problems {
				if _, err := proto.Marshal(problem); err != nil || problem.GetService() != "slicesvc" || problem.GetNext() == "" {
					t.Errorf("problem %v cannot be sent (%v), or is incomplete", problem, err)
				}
				message := problem.GetMessage()
				if i < len(c.want) && strings.Contains(message, c.want[i][3]) {
					message = c.want[i][3]
				}
				got = append(got, [4]string{problem.GetCode(), problem.GetSeverity().String(), problem.GetResource(), message})
			}
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFieldChanges_AreBounded(t *testing.T) {
	service := slicetest.Service("web")
	before := slicetest.Slice(service, "web-a", slicetest.Pods(0, 150), func(slice *discoveryv1.EndpointSlice) {
		slice.Annotations = map[string]string{"note": strings.Repeat("ä", 2*planned.MaxValue)}
	})
	after := slicetest.Slice(service, "web-a", slicetest.Pods(100, 300))
	changes := fieldChanges(before, after)
	if len(changes) != planned.MaxFields {
		t.Errorf("%d changes, want %d", len(changes), planned.MaxFields)
	}
	for i, change := range changes {
		if i > 0 && changes[i-1].GetPath() >= change.GetPath() {
			t.Errorf("%s comes before %s", changes[i-1].GetPath(), change.GetPath())
		}
	}
	changes = fieldChanges(before, slicetest.Slice(service, "web-a", slicetest.Pods(0, 150)))
	if len(changes) != 1 || changes[0].GetPath() != `metadata.annotations["note"]` || changes[0].GetAfter() != "" ||
		len(changes[0].GetBefore()) > planned.MaxValue || !utf8.ValidString(changes[0].GetBefore()) {
		t.Errorf("changes are %v, want one short value that went", changes)
	}
}

// Two Pods may have one address, for example on the network of their node.
func TestFieldChanges_NamesPodsWithTheSameAddress(t *testing.T) {
	service := slicetest.Service("web")
	pods := slicetest.Pods(0, 2)
	pods[1].Pod.Status.PodIPs = pods[0].Pod.Status.PodIPs
	before := slicetest.Slice(service, "web-a", pods)
	pods[0].Pod = slicetest.Pod("web-0", slicetest.Address(0), slicetest.Unready)
	after := slicetest.Slice(service, "web-a", pods, func(slice *discoveryv1.EndpointSlice) { slice.Ports = nil })
	var got []string
	for _, change := range fieldChanges(before, after) {
		got = append(got, fmt.Sprintf("%s: %s -> %s", change.GetPath(), change.GetBefore(), change.GetAfter()))
	}
	want := []string{
		`endpoints["10.1.0.1 web-0"].conditions.ready: true -> false`,
		`endpoints["10.1.0.1 web-0"].conditions.serving: true -> false`,
		`ports: [{"name":"http","protocol":"TCP","port":8080}] -> `,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("field changes (-want +got):\n%s", diff)
	}
}

func TestReconcileError_NamesTheLeader(t *testing.T) {
	for name, c := range map[string]struct {
		shard   term.ShardStatus
		code    codes.Code
		reason  rpcerror.Reason
		address string
	}{
		"another replica leads": {term.ShardStatus{ReplicaID: "slicesvc-2", GRPCAddress: "10.0.0.2:7603"}, codes.FailedPrecondition, rpcerror.NotLeaderReason, "10.0.0.2:7603"},
		"no replica leads":      {term.ShardStatus{}, codes.Unavailable, rpcerror.NoLeaderReason, ""},
		"the term begins here":  {term.ShardStatus{Here: true, GRPCAddress: "10.0.0.1:7603"}, codes.Unavailable, rpcerror.NoLeaderReason, ""},
	} {
		parts := fakeParts{shards: []term.ShardStatus{c.shard}}
		err := toStatus(parts.server().reconcileError(slicecontroller.Key{Namespace: "shop", Name: "web"}, nil, nil, slicecontroller.ErrShardNotHeld))
		if status.Code(err) != c.code || rpcerror.ReasonOf(err) != c.reason || rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey) != c.address {
			t.Errorf("%s: error is %v, want %s %s with address %q", name, err, c.code, c.reason, c.address)
		}
	}
}

func TestToStatus_ThrottledWriteHasRetryInfo(t *testing.T) {
	err := toStatus(fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", 3)))
	if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.APIServerUnreachableReason || rpcerror.RetryAfterOf(err) != 3*time.Second {
		t.Errorf("error is %v, retry after %v; want %s after 3s", err, rpcerror.RetryAfterOf(err), rpcerror.APIServerUnreachableReason)
	}
}

// Kubernetes asks for hints in several ways. kube-proxy follows hints only if each ready endpoint
// has one.
func TestHintsCondition_SaysWhyThereAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		state         slicecontroller.ServiceState
		ready, hinted int32
		status        metav1.Condition_Status
		reason        string
	}{
		"not asked for":      {ready: 2},
		"no ready endpoint":  {state: slicecontroller.ServiceState{Topology: "PreferClose"}},
		"all have one":       {state: slicecontroller.ServiceState{Topology: "PreferClose"}, ready: 2, hinted: 2, status: metav1.Condition_STATUS_TRUE, reason: "HINTED"},
		"one has none":       {state: slicecontroller.ServiceState{Topology: "PreferClose"}, ready: 2, hinted: 1, status: metav1.Condition_STATUS_FALSE, reason: "NO_ZONES"},
		"cannot be divided":  {state: slicecontroller.ServiceState{Topology: "Auto", TopologyProblem: "no node is ready"}, ready: 2, status: metav1.Condition_STATUS_FALSE, reason: "NOT_ENOUGH_NODES_OR_ENDPOINTS"},
		"gets no slices now": {state: slicecontroller.ServiceState{Topology: "Auto", Unmanaged: "NO_SELECTOR"}, ready: 2},
	} {
		condition := hintsCondition(serviceState{ServiceState: c.state}, &slicev1.ServiceSlices{
			ReadyEndpointCount: c.ready,
			Slices:             []*slicev1.SliceSummary{{HintedEndpointCount: c.hinted}},
		})
		if condition.GetStatus() != c.status || condition.GetReason() != c.reason || (condition != nil) != (condition.GetMessage() != "") {
			t.Errorf("%s: condition is %v, want %v %s", name, condition, c.status, c.reason)
		}
	}
}
