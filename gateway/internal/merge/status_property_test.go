package merge_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// drawSources draws replicas with unique ids whose answers may contradict each other.
func drawSources(t *rapid.T) []merge.Source {
	ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 8, rapid.ID).Draw(t, "ids")
	var sources []merge.Source
	for _, n := range ids {
		id := fmt.Sprintf("r%d", n)
		service := rapid.SampledFrom([]string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway", "newsvc"}).Draw(t, "service")
		source := merge.Source{Replica: replica(service, id), Latency: time.Duration(n)}
		switch rapid.IntRange(0, 3).Draw(t, "outcome") {
		case 0:
			source.Code, source.Message = "UNAVAILABLE", "connection refused"
		case 1:
			source.Answer = &statusv1.GetStatusResponse{Replica: replica(service, "another-replica"), Ready: true}
		default:
			source.Answer = &statusv1.GetStatusResponse{
				Replica: replica(service, id),
				Ready:   rapid.Bool().Draw(t, "ready"),
				Terms:   rapid.SliceOfN(rapid.Custom(drawTerm), 0, 5).Draw(t, "terms"),
			}
		}
		sources = append(sources, source)
	}
	return sources
}

// drawTerm keeps an invariant of etcd: an epoch is one transaction, so it has one holder.
func drawTerm(t *rapid.T) *statusv1.Term {
	epoch := rapid.Int64Range(0, 6).Draw(t, "epoch")
	term := &statusv1.Term{Shard: rapid.Int32Range(-1, 4).Draw(t, "shard"), Epoch: epoch}
	if epoch > 0 {
		term.ReplicaId = fmt.Sprintf("r%d", epoch)
		term.HeldHere = rapid.Bool().Draw(t, "held here")
	}
	return term
}

func TestStatus_IndependentOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)
		shuffled := rapid.Permutation(sources).Draw(t, "shuffled")

		one, other := merge.Status("test", sources, noon), merge.Status("test", shuffled, noon)

		if diff := cmp.Diff(one, other, protocmp.Transform()); diff != "" {
			t.Fatalf("the status depends on the order of the sources:\n%s", diff)
		}
	})
}

func TestStatus_DoesNotChangeItsInputs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)
		before := slices.Clone(sources)
		for i, source := range sources {
			before[i].Replica = proto.CloneOf(source.Replica)
			before[i].Answer = proto.CloneOf(source.Answer)
		}

		merge.Status("test", sources, noon)

		if diff := cmp.Diff(before, sources, protocmp.Transform()); diff != "" {
			t.Fatalf("the input changed:\n%s", diff)
		}
	})
}

func TestStatus_HealthIsTheAbsenceOfProblems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := drawSources(t)

		status := merge.Status("test", sources, noon)

		if len(status.Sources) != len(sources) {
			t.Fatalf("%d sources were asked, %d are named", len(sources), len(status.Sources))
		}
		problems := 0
		for _, service := range status.Services {
			problems += len(service.Problems)
			if service.Healthy != (len(service.Problems) == 0) {
				t.Fatalf("%s is healthy=%v with problems %q", service.Service, service.Healthy, service.Problems)
			}
			checkTerms(t, service)
		}
		if status.Healthy != (problems == 0) {
			t.Fatalf("the cluster is healthy=%v with %d problems", status.Healthy, problems)
		}
		if merge.Partial(status) && status.Healthy {
			t.Fatal("a source failed and the cluster is healthy")
		}
	})
}

// checkTerms checks that each shard appears once, in order, with the highest epoch of all reports.
func checkTerms(t *rapid.T, service *gatewayv1.ServiceStatus) {
	highest := map[int32]int64{}
	for _, answer := range service.Replicas {
		for _, term := range answer.Terms {
			highest[term.Shard] = max(highest[term.Shard], term.Epoch)
		}
	}
	if len(service.Terms) != len(highest) {
		t.Fatalf("%s reports %d shards, its replicas know %d", service.Service, len(service.Terms), len(highest))
	}
	for i, term := range service.Terms {
		if i > 0 && service.Terms[i-1].Shard >= term.Shard {
			t.Fatalf("%s: shard %d follows %d", service.Service, term.Shard, service.Terms[i-1].Shard)
		}
		if term.Epoch != highest[term.Shard] {
			t.Fatalf("%s: shard %d has epoch %d, a replica knows %d", service.Service, term.Shard, term.Epoch, highest[term.Shard])
		}
	}
}
