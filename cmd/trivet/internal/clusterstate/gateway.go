package clusterstate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	trivetmetav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

const (
	// leasesPage and slicesPage are the largest pages of their lists.
	leasesPage, slicesPage = 5000, 1000
	// maxPages bounds a list.
	maxPages = 200
	// nodeLeases is the namespace of the Leases of Nodes.
	nodeLeases = "kube-node-lease"
	// lagAge is the age up to which a sync of slices counts for the lag.
	lagAge = 10 * time.Minute
)

// Status is the gateway's status of all services.
type Status struct {
	Installation diagnosis.Installation
	// Clocks are those of the replicas that answered.
	Clocks []diagnosis.Clock
	// Certificates has the certificate of the gateway; empty without TLS.
	Certificates []diagnosis.Certificate
}

// GatewayStatus asks the gateway for the status of all services.
func GatewayStatus(ctx context.Context, conn grpc.ClientConnInterface) (Status, error) {
	began := time.Now()
	var server peer.Peer
	response, err := gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{}, grpc.Peer(&server))
	if err != nil {
		return Status{}, err
	}
	s := statusOf(response, began, time.Since(began))
	if secure, ok := server.AuthInfo.(credentials.TLSInfo); ok && len(secure.State.PeerCertificates) > 0 {
		leaf := secure.State.PeerCertificates[0]
		s.Certificates = []diagnosis.Certificate{{Name: "certificate of the gateway", NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter}}
	}
	return s, nil
}

func statusOf(response *gatewayv1.GetClusterStatusResponse, began time.Time, took time.Duration) Status {
	var s Status
	for _, service := range response.GetStatus().GetServices() {
		converted := diagnosis.Service{Name: service.GetService(), Shards: int(service.GetShardCount()), LedShards: int(service.GetLedShardCount())}
		for _, result := range service.GetReplicas() {
			converted.Replicas = append(converted.Replicas, replicaOf(service.GetService(), result, response.GetMissing()))
		}
		s.Installation.Services = append(s.Installation.Services, converted)
	}
	verdict := response.GetStatus().GetVerdict()
	s.Installation.Verdict = strings.TrimPrefix(verdict.GetState().String(), "STATE_")
	for _, problem := range verdict.GetProblems() {
		s.Installation.Problems = append(s.Installation.Problems, strings.TrimPrefix(problem.GetResource()+": ", ": ")+problem.GetMessage())
	}
	for _, source := range response.GetSources() {
		if source.GetReadTime() != nil {
			s.Clocks = append(s.Clocks, clockOf(source.GetService()+" "+source.GetReplicaId(), source.GetReadTime().AsTime(), began, took, 0))
		}
	}
	return s
}

// timeOf returns the zero time for a timestamp that is not there.
func timeOf(at *timestamppb.Timestamp) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.AsTime()
}

func replicaOf(service string, result *gatewayv1.ReplicaResult, missing []*trivetmetav1.MissingPart) diagnosis.Replica {
	status := result.GetStatus()
	r := diagnosis.Replica{ID: result.GetReplica().GetId(), Version: result.GetReplica().GetVersion(), Started: result.GetReplica().GetStartTime().AsTime()}
	if status == nil {
		r.Missing = "no answer"
		for _, part := range missing {
			if part.GetService() == service && part.GetReplicaId() == r.ID {
				r.Missing = part.GetMessage()
				r.Answered = part.GetCode() != code.Code_DEADLINE_EXCEEDED && isRefusalText(part.GetMessage())
			}
		}
		return r
	}
	r.Ready, r.Adopts = status.GetReady(), status.GetCounts()["adopts_master_leases"] > 0
	for _, problem := range status.GetProblems() {
		if r.Problem == "" {
			r.Problem = problem.GetMessage()
		}
	}
	for _, loop := range status.GetLoops() {
		r.Loops = append(r.Loops, diagnosis.Loop{
			Name: loop.GetName(), State: diagnosis.LoopState(printer.EnumWord(loop.GetState(), "STATE_")),
			Shadow: loop.GetMode() == trivetmetav1.Mode_MODE_SHADOW, Switched: timeOf(loop.GetSwitchTime()), Succeeded: timeOf(loop.GetLastSuccessTime()), Error: loop.GetLastError(),
		})
	}
	for _, d := range status.GetDependencies() {
		r.Dependencies = append(r.Dependencies, diagnosis.Dependency{Name: d.GetName(), Healthy: d.GetHealthy(), Message: d.GetMessage()})
	}
	return r
}

func isRefusalText(text string) bool { return isRefusal(fmt.Errorf("%s", text)) }

// Leases are the leases of Nodes at leasesvc.
type Leases struct {
	// Agents are the Nodes whose lease has not expired.
	Agents []string
	Lags   []diagnosis.Lag
	// Missing says which part is missing; empty if none.
	Missing string
}

// NodeLeases lists the leases of Nodes.
func NodeLeases(ctx context.Context, conn grpc.ClientConnInterface) (Leases, error) {
	var l Leases
	client := leasev1.NewLeaseServiceClient(conn)
	request := &leasev1.ListLeasesRequest{Parent: "namespaces/" + nodeLeases, PageSize: leasesPage}
	for range maxPages {
		page, err := client.ListLeases(ctx, request)
		if err != nil {
			return l, err
		}
		now := time.Now()
		for _, lease := range page.GetLeases() {
			name := lease.GetHolder().GetName()
			if lease.GetState() != leasev1.Lease_STATE_EXPIRED {
				l.Agents = append(l.Agents, name)
			}
			if due := lease.GetWrite().GetDueTime(); due != nil && lease.GetState() == leasev1.Lease_STATE_ALIVE {
				l.Lags = append(l.Lags, diagnosis.Lag{Work: "the Lease write of " + name, Lag: now.Sub(due.AsTime())})
			}
		}
		for _, part := range page.GetMissing() {
			l.Missing = "leases of " + part.GetService() + ": " + part.GetMessage()
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return l, nil
		}
	}
	l.Missing = "there are too many leases"
	return l, nil
}

// SliceLags returns how long after their causes the recent syncs of a page of Services wrote.
func SliceLags(ctx context.Context, conn grpc.ClientConnInterface) ([]diagnosis.Lag, error) {
	page, err := slicev1.NewSliceServiceClient(conn).ListServiceSlices(ctx, &slicev1.ListServiceSlicesRequest{PageSize: slicesPage})
	if err != nil {
		return nil, err
	}
	var lags []diagnosis.Lag
	now := time.Now()
	for _, service := range page.GetServiceSlices() {
		for _, sync := range service.GetSyncs() {
			plan := sync.GetLastPlan()
			wrote := plan.GetCreateCount()+plan.GetUpdateCount()+plan.GetDeleteCount() > 0
			if wrote && plan.GetLatency() != nil && now.Sub(plan.GetStartTime().AsTime()) < lagAge {
				name := strings.NewReplacer("namespaces/", "", "/serviceslices/", "/").Replace(service.GetName())
				lags = append(lags, diagnosis.Lag{Work: "the sync of " + name, Lag: plan.GetLatency().AsDuration(), Past: true})
			}
		}
	}
	return lags, nil
}

// JudgedNodes returns how many Nodes the loop of node health knows, and which part is missing.
func JudgedNodes(ctx context.Context, conn grpc.ClientConnInterface) (judged int, missing string, err error) {
	client := nodev1.NewNodeHealthServiceClient(conn)
	request := &nodev1.ListNodeHealthRequest{PageSize: leasesPage}
	for range maxPages {
		page, err := client.ListNodeHealth(ctx, request)
		if err != nil {
			return 0, "", err
		}
		judged += len(page.GetNodes())
		for _, part := range page.GetMissing() {
			missing = part.GetService() + ": " + part.GetMessage()
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return judged, missing, nil
		}
	}
	return judged, "there are too many Nodes", nil
}

// AdoptedKeys returns the kube-apiservers with their own reconciler that bootstrapsvc knows with
// --adopt-master-leases.
func AdoptedKeys(ctx context.Context, conn grpc.ClientConnInterface) ([]diagnosis.MasterLease, error) {
	page, err := bootstrapv1.NewAPIServerServiceClient(conn).ListAPIServers(ctx, &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		return nil, err
	}
	var keys []diagnosis.MasterLease
	for _, server := range page.GetApiservers() {
		if server.GetRegistrationSource() == bootstrapv1.APIServer_REGISTRATION_SOURCE_MASTER_LEASE {
			keys = append(keys, diagnosis.MasterLease{Address: server.GetAddress(), Alive: server.GetTtl() != nil})
		}
	}
	return keys, nil
}
