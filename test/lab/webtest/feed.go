package webtest

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Cluster says what a simulated gateway reports.
type Cluster struct {
	Nodes, Services int
	// Changes is how many Nodes change their health in a second.
	Changes int
	// Broken is whether a service, a Service and some Nodes have problems.
	Broken bool
	// CutOff is whether a replica reaches neither etcd nor kube-apiserver.
	CutOff bool
	// Hostile is text that a replica reports in a problem, as its link, too, and in a decision of a
	// clock that is an hour ahead; empty for none.
	Hostile string
}

// Gateway serves the page and a simulated cluster until the test ends. It has the combined stream
// and the routes that the page asks.
type Gateway struct {
	URL string
	// Watches counts the combined streams that were opened.
	Watches atomic.Int64
	// Stop ends all connections, and the Gateway.
	Stop func()

	cluster Cluster
	start   time.Time
}

// StartGateway starts a Gateway on loopback.
func StartGateway(t testing.TB, files fs.FS, cluster Cluster) *Gateway {
	t.Helper()
	g := &Gateway{cluster: cluster, start: time.Now()}
	mux := http.NewServeMux()
	mux.Handle("GET /", noStore(http.FileServerFS(files)))
	mux.HandleFunc("GET /v1/watch", g.watch)
	mux.HandleFunc("GET /v1/status:history", answer(g.history()))
	mux.HandleFunc("GET /v1/baseline", answer(&bootstrapv1.GetBaselineResponse{Baseline: g.baseline()}))
	mux.HandleFunc("GET /v1/apiservers", answer(g.apiservers()))
	mux.HandleFunc("GET /v1/repairs", answer(&bootstrapv1.ListRepairsResponse{}))
	mux.HandleFunc("GET /v1/zones", answer(g.zones()))
	mux.HandleFunc("GET /v1/nodes/{rest}", func(w http.ResponseWriter, r *http.Request) {
		answer(g.explain(strings.TrimSuffix(r.PathValue("rest"), ":explain")))(w, r)
	})
	server := httptest.NewServer(mux)
	g.Stop = sync.OnceFunc(func() {
		server.CloseClientConnections()
		server.Close()
	})
	t.Cleanup(g.Stop)
	g.URL = server.URL + "/"
	return g
}

// noStore makes the browser load the files of each test.
func noStore(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'")
		next.ServeHTTP(w, r)
	})
}

func answer(message proto.Message) http.HandlerFunc {
	body := encode(message)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // the browser may be gone
	}
}

func encode(message proto.Message) []byte {
	body, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		panic(err) // a message of this package
	}
	return body
}

// watch is the combined stream.
func (g *Gateway) watch(w http.ResponseWriter, r *http.Request) {
	g.Watches.Add(1)
	out := &stream{to: w, control: http.NewResponseController(w)}
	var running sync.WaitGroup
	running.Go(func() { out.flushUntil(r.Context().Done()) })
	for index, target := range r.URL.Query()["watch"] {
		name, _, _ := strings.Cut(path.Base(target), ":")
		send := func(message proto.Message) { out.send(index, message) }
		running.Go(func() {
			switch name {
			case "status":
				g.watchStatus(r.Context(), send)
			case "nodes":
				g.watchNodes(r.Context(), send)
			case "serviceslices":
				g.watchServices(send)
			case "findings":
				g.watchFindings(send)
			case "decisions":
				g.watchDecisions(send)
			}
			<-r.Context().Done()
		})
	}
	running.Wait()
}

// stream is a response that several watches share.
type stream struct {
	mu      sync.Mutex // guards the fields below
	to      http.ResponseWriter
	control *http.ResponseController
	flushed time.Time // the last time
}

func (s *stream) send(index int, message proto.Message) {
	body := encode(message)
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.to, "{\"watch\":%d,\"result\":%s}\n", index, body)
	if time.Since(s.flushed) > 10*time.Millisecond { // as the gateway
		s.flush()
	}
}

func (s *stream) flush() {
	_ = s.control.Flush() // fails only without a connection
	s.flushed = time.Now()
}

// flushUntil flushes until the request ends.
func (s *stream) flushUntil(done <-chan struct{}) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			s.mu.Lock()
			s.flush()
			s.mu.Unlock()
		}
	}
}

func end() *metav1.Bookmark { return &metav1.Bookmark{InitialEventsEnd: true} }

func (g *Gateway) watchStatus(ctx context.Context, send func(proto.Message)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		status, missing := g.status()
		send(&gatewayv1.WatchClusterStatusResponse{Type: metav1.EventType_EVENT_TYPE_MODIFIED, Status: status, Missing: missing})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watchNodes changes the Nodes in turn, each time some of them to another health.
func (g *Gateway) watchNodes(ctx context.Context, send func(proto.Message)) {
	healthOf := func(i int) nodev1.NodeHealth_Health {
		if g.cluster.Broken && i%40 == 7 {
			return nodev1.NodeHealth_Health(1 + i/40%6)
		}
		return nodev1.NodeHealth_HEALTH_READY
	}
	for i := range g.cluster.Nodes {
		send(&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, Node: g.node(i, healthOf(i))})
	}
	send(&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: end()})
	if g.cluster.Changes == 0 {
		return
	}
	const perSecond = 20
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for changed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for range g.cluster.Changes / perSecond {
			i := changed * 7919 % g.cluster.Nodes // a prime spreads the changes over the grid
			health := nodev1.NodeHealth_Health(1 + changed%6)
			send(&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_MODIFIED, Node: g.node(i, health)})
			changed++
		}
	}
}

func (g *Gateway) node(i int, health nodev1.NodeHealth_Health) *nodev1.NodeHealth {
	shard := int32(i % 16)
	node := &nodev1.NodeHealth{
		Name: fmt.Sprintf("nodes/node-%06d", i), Zone: fmt.Sprintf("zones/eu-1:%c", 'a'+i%3), Health: health, Reason: "BEATS", Ready: "True",
		Message: "it sends heartbeats and reports that it is ready", LeaseState: leasev1.Lease_STATE_ALIVE, ChangeTime: timestamppb.New(g.start),
		Uid: fmt.Sprintf("5f0c0f5e-0000-4000-8000-%012d", i), ResourceVersion: fmt.Sprint(1_000_000 + i),
		Signals: []*nodev1.Signal{{Source: nodev1.SignalSource_SIGNAL_SOURCE_AGENT}, {Source: nodev1.SignalSource_SIGNAL_SOURCE_LEASE_OBJECT}},
		Owner:   &metav1.Owner{ReplicaId: fmt.Sprintf("leasesvc-%d", shard%3), Shard: &shard, Epoch: 40 + int64(shard)},
	}
	if i%5 != 0 {
		node.Agent = &leasev1.Lease_Agent{Name: "trivet-agent", Version: "v1.2.0", Mode: "endpoint"}
	}
	if health >= nodev1.NodeHealth_HEALTH_SUSPECT {
		node.Message, node.Reason = "no heartbeat since its last Lease", "NO_BEAT"
	}
	if health == nodev1.NodeHealth_HEALTH_UNKNOWN {
		node.Ready, node.Taints = "Unknown", []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}
	}
	return node
}

func (g *Gateway) explain(name string) *nodev1.ExplainNodeHealthResponse {
	node := g.node(0, nodev1.NodeHealth_HEALTH_SILENT)
	node.Name = "nodes/" + name
	broken := int32(1)
	return &nodev1.ExplainNodeHealthResponse{Node: node, BrokenIndex: &broken, Evidence: []*metav1.Evidence{
		{Code: "LEASE", Result: metav1.Evidence_RESULT_OK, Message: "the lease exists", Source: "lease"},
		{Code: "LAST_BEAT", Result: metav1.Evidence_RESULT_FAILED, Message: "last heard 26 s ago", Next: "look at the kubelet: journalctl -u kubelet", Source: "lease"},
		{Code: "TAINT", Result: metav1.Evidence_RESULT_WARNING, Message: "not tainted yet", Source: "node"},
		{Code: "EVICTION", Result: metav1.Evidence_RESULT_NOT_APPLICABLE, Message: "no pod is due", Source: "pods"},
	}}
}

func (g *Gateway) watchServices(send func(proto.Message)) {
	for i := range g.cluster.Services {
		name := fmt.Sprintf("svc-%05d", i)
		endpoints := int32(1 + i%90)
		service := &slicev1.ServiceSlices{
			Name: fmt.Sprintf("namespaces/team-%03d/serviceslices/%s", i%300, name), EndpointCount: endpoints, ReadyEndpointCount: endpoints, IdealSliceCount: 1,
			Slices: []*slicev1.SliceSummary{{
				Name: name + "-abcde", AddressType: "IPv4", EndpointCount: endpoints, ReadyEndpointCount: endpoints, Capacity: 100,
				CreateTime: timestamppb.New(g.start), Source: slicev1.SliceSource_SLICE_SOURCE_SELECTOR,
			}},
			Syncs: []*slicev1.ServiceSlices_Sync{{LastPlan: &slicev1.ServiceSlices_LastPlan{Trigger: "POD", CreateCount: 1, StartTime: timestamppb.New(g.start)}}},
		}
		if i%20 == 3 {
			service.Slices[0].Source = slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS
		}
		if g.cluster.Broken && i == 7 {
			service.Conditions = []*metav1.Condition{{
				Type: "Contended", Status: metav1.Condition_STATUS_TRUE, Reason: "ANOTHER_WRITER", Message: "kube-controller-manager keeps changing the same slices",
			}}
		}
		send(&slicev1.WatchServiceSlicesResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, ServiceSlices: service})
	}
	send(&slicev1.WatchServiceSlicesResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: end()})
}

func (g *Gateway) watchFindings(send func(proto.Message)) {
	if g.cluster.Broken {
		for i, code := range []string{"ORPHAN", "DUPLICATE_OWNER"} {
			send(&bootstrapv1.WatchFindingsResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, Finding: &bootstrapv1.Finding{
				Name: fmt.Sprintf("findings/cluster-ips.10.96.0.%d", i), Subject: fmt.Sprintf("10.96.0.%d", i), Code: code, State: bootstrapv1.Finding_STATE_OPEN,
				Message:          "the address is allocated and no Service uses it",
				FirstObserveTime: timestamppb.New(g.start.Add(-time.Hour)), LastObserveTime: timestamppb.New(g.start), ObservationCount: 12,
			}})
		}
	}
	send(&bootstrapv1.WatchFindingsResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: end()})
}

func (g *Gateway) watchDecisions(send func(proto.Message)) {
	for i := range 3 {
		at := g.start.Add(time.Duration(i) * time.Second)
		send(&statusv1.WatchDecisionsResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, Decision: &statusv1.Decision{
			Name:       fmt.Sprintf("decisions/%s-leasesvc-0", at.UTC().Format("20060102T150405.000000000Z")),
			DecideTime: timestamppb.New(at), Service: "leasesvc", ReplicaId: "leasesvc-0", Action: statusv1.Decision_ACTION_NODE_MARKED_UNKNOWN,
			Message: "no sign of life for 50s", Object: &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: fmt.Sprintf("node-%06d", i)},
			Resources: []string{fmt.Sprintf("nodes/node-%06d", i)},
		}})
	}
	if text := g.cluster.Hostile; text != "" {
		at := g.start.Add(time.Hour)
		send(&statusv1.WatchDecisionsResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, Decision: &statusv1.Decision{
			Name: fmt.Sprintf("decisions/%s-hostile", at.UTC().Format("20060102T150405.000000000Z")), DecideTime: timestamppb.New(at),
			Service: text, ReplicaId: text, Message: text, Object: &metav1.ObjectReference{Kind: "__proto__", Namespace: text, Name: text}, Resources: []string{text},
		}})
	}
	send(&statusv1.WatchDecisionsResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: end()})
}

// status has three replicas of each service. In a broken cluster one replica of slicesvc is silent
// and a loop of leasesvc fails.
func (g *Gateway) status() (*gatewayv1.ClusterStatus, []*metav1.MissingPart) {
	status := &gatewayv1.ClusterStatus{Cluster: "simulated", MergeTime: timestamppb.Now(), Verdict: &metav1.Verdict{State: metav1.Verdict_STATE_OK}}
	var missing []*metav1.MissingPart
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"} {
		service := &gatewayv1.ServiceStatus{Service: name, Verdict: &metav1.Verdict{State: metav1.Verdict_STATE_OK}, ShardCount: 3, LedShardCount: 3}
		for i := range int32(3) {
			replica := &statusv1.Replica{
				Id: fmt.Sprintf("%s-%d", name, i), Service: name, Cluster: "simulated", Version: "v1.2.0",
				GrpcAddress: fmt.Sprintf("10.0.0.%d:7100", i), StartTime: timestamppb.New(g.start),
			}
			service.Replicas = append(service.Replicas, &gatewayv1.ReplicaResult{Replica: replica, Latency: durationpb.New(3 * time.Millisecond), Status: &statusv1.ReplicaStatus{
				Replica: replica, Ready: true, ShardCount: 3, LedShards: []int32{i}, Counts: map[string]int64{"leases": int64(g.cluster.Nodes / 3), "queue": 0},
				Loops:        []*statusv1.Loop{{Name: "writeback", State: statusv1.Loop_STATE_RUNNING, LastRunTime: timestamppb.Now(), RunCount: 7}},
				Dependencies: []*statusv1.Dependency{{Name: "etcd", Healthy: true, LastContactTime: timestamppb.Now()}},
			}})
		}
		status.Services = append(status.Services, service)
	}
	if g.cluster.Broken {
		missing = g.breakStatus(status)
	}
	if g.cluster.Hostile != "" {
		text := g.cluster.Hostile
		status.Verdict = &metav1.Verdict{State: metav1.Verdict_STATE_WARNING, Problems: []*metav1.Problem{{
			Code: text, Severity: metav1.Problem_SEVERITY_WARNING, Resource: text, Service: text, Message: text, Next: text, HelpUrl: text,
		}}}
	}
	if g.cluster.CutOff {
		status.Verdict = &metav1.Verdict{State: metav1.Verdict_STATE_WARNING}
		for _, dependency := range []string{"etcd", "kube-apiserver"} {
			status.Verdict.Problems = append(status.Verdict.Problems, &metav1.Problem{
				Code: "DEPENDENCY_UNREACHABLE", Severity: metav1.Problem_SEVERITY_WARNING, Resource: "replicas/leasesvc-1", Service: "leasesvc",
				Message: dependency + " is not reachable",
			})
		}
		status.Services[0].Verdict = status.Verdict
	}
	return status, missing
}

func (g *Gateway) breakStatus(status *gatewayv1.ClusterStatus) []*metav1.MissingPart {
	leases, slices := status.Services[0], status.Services[2]
	loop := leases.Replicas[1].Status.Loops[0]
	loop.State, loop.LastError = statusv1.Loop_STATE_FAILING, "etcdserver: request timed out"
	leases.Verdict = &metav1.Verdict{State: metav1.Verdict_STATE_WARNING, Problems: []*metav1.Problem{{
		Code: "LOOP_FAILING", Severity: metav1.Problem_SEVERITY_WARNING, Resource: "replicas/leasesvc-1", Service: "leasesvc",
		Message: "loop writeback failed: etcdserver: request timed out", Next: "it tries again; see the log of the replica",
	}}}
	slices.Replicas[2].Status = nil
	slices.Verdict = &metav1.Verdict{State: metav1.Verdict_STATE_FAILED, Problems: []*metav1.Problem{{
		Code: "SHARDS_WITHOUT_LEADER", Severity: metav1.Problem_SEVERITY_ERROR, Resource: "services/slicesvc", Service: "slicesvc",
		Message: "slicesvc: shard 2 has no leader", Next: "see the log of its replicas for the loop that gives them up",
	}}}
	status.Verdict = &metav1.Verdict{State: metav1.Verdict_STATE_FAILED, Problems: append(slices.Verdict.Problems, leases.Verdict.Problems...)}
	return []*metav1.MissingPart{{Service: "slicesvc", ReplicaId: "slicesvc-2", Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer in time"}}
}

// history has a gap in its middle.
func (g *Gateway) history() *gatewayv1.GetStatusHistoryResponse {
	response := &gatewayv1.GetStatusHistoryResponse{ReplicaId: "gateway-0", EndTime: timestamppb.Now(), Interval: durationpb.New(5 * time.Second)}
	for _, series := range []struct{ service, name string }{
		{"bootstrapsvc", "open_findings"}, {"leasesvc", "alive"}, {"leasesvc", "answer_seconds"}, {"leasesvc", "expired"}, {"leasesvc", "suspect"}, {"slicesvc", "endpoints"}, {"slicesvc", "queue"},
	} {
		values := make([]float64, 720)
		for i := range values {
			values[i] = float64(i % 100)
			if i > 300 && i < 340 {
				values[i] = math.NaN()
			}
		}
		response.Series = append(response.Series, &gatewayv1.GetStatusHistoryResponse_Series{Service: series.service, Name: series.name, Values: values})
	}
	return response
}

func (g *Gateway) zones() *nodev1.ListZonesResponse {
	response := &nodev1.ListZonesResponse{}
	for _, zone := range []string{"a", "b", "c"} {
		response.Zones = append(response.Zones, &nodev1.Zone{Name: "zones/eu-1:" + zone, State: nodev1.Zone_STATE_NORMAL, NodeCount: int32(g.cluster.Nodes / 3)})
	}
	if g.cluster.Broken {
		response.Zones[1].State = nodev1.Zone_STATE_PARTIAL_DISRUPTION
		response.Conditions = []*metav1.Condition{{
			Type: "MarkingSuspended", Status: metav1.Condition_STATUS_TRUE, Reason: "STARTUP_GRACE", Message: "leasesvc has just started",
		}}
	}
	return response
}

func (g *Gateway) baseline() *bootstrapv1.Baseline {
	addresses := []string{"10.0.0.1", "10.0.0.2"}
	baseline := &bootstrapv1.Baseline{
		Name: "baseline", EndpointReconciler: "lease", Plan: &metav1.Plan{Mode: metav1.Mode_MODE_ENFORCE},
		ServiceCidr: &bootstrapv1.Baseline_ServiceCIDR{Exists: true, Cidrs: []string{"10.96.0.0/16"}, Ready: true},
		KubernetesService: &bootstrapv1.Baseline_KubernetesService{
			Exists: true, ClusterIp: "10.96.0.1", Ports: []string{"https:443/TCP"}, DesiredAddresses: addresses, EndpointSliceAddresses: addresses,
		},
		Namespaces: []*bootstrapv1.Baseline_Namespace{{Name: "default", Exists: true, Phase: "Active"}, {Name: "kube-system", Exists: true, Phase: "Active"}},
	}
	if g.cluster.Broken {
		baseline.Namespaces[1].Exists = false
		baseline.Conditions = []*metav1.Condition{{
			Type: "kube-system", Status: metav1.Condition_STATUS_FALSE, Reason: "NAMESPACE_MISSING", Message: "the namespace kube-system does not exist",
		}}
	}
	return baseline
}

func (g *Gateway) apiservers() *bootstrapv1.ListAPIServersResponse {
	response := &bootstrapv1.ListAPIServersResponse{}
	for i := range 2 {
		ready := !g.cluster.Broken || i == 0
		published := metav1.Condition_STATUS_TRUE
		if !ready {
			published = metav1.Condition_STATUS_FALSE
		}
		response.Apiservers = append(response.Apiservers, &bootstrapv1.APIServer{
			Name: fmt.Sprintf("apiservers/10.0.0.%d", i+1), Address: fmt.Sprintf("10.0.0.%d", i+1), Port: 6443, Ready: ready,
			RegistrationSource: bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR,
			Conditions:         []*metav1.Condition{{Type: "Published", Status: published, Reason: "READY", Message: "its /readyz answers"}},
		})
	}
	return response
}
