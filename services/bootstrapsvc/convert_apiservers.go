package bootstrapsvc

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

// Reasons of servers of which no plan says anything.
const (
	notKnown  = "whether it is an endpoint is not known, because kube-apiserver did not answer"
	notChosen = "endpoints are not chosen from those that report: see --endpoint-reconciler-type"
	isStatic  = "it is --static-apiserver-address, which is published as it is"
)

// apiServersOf converts those present, one for each address, in their order. found is nil where Kubernetes did not answer.
func apiServersOf(roll rollcall, found *endpointsSurvey) []*bootstrapv1.APIServer {
	var converted []*bootstrapv1.APIServer
	for rest := roll.present; len(rest) > 0; {
		size := 1
		for size < len(rest) && rest[size].name == rest[0].name {
			size++
		}
		next := sharedBy(rest[:size])
		next.Published, next.Reason = standingOf(rest[0], found)
		converted, rest = append(converted, next), rest[size:]
	}
	return converted
}

// sharedBy is one address as those behind it say. Usually that is one; of several, one that is ready speaks for all, and the
// others are named.
func sharedBy(group []present) *bootstrapv1.APIServer {
	speaker := max(0, slices.IndexFunc(group, func(each present) bool { return each.server.Ready }))
	converted := apiServerOf(group[speaker])
	for i, each := range group {
		if i == speaker {
			continue
		}
		converted.ReplicaId += ", " + each.replica
		if !each.server.Ready && len(each.problems) == 0 {
			converted.Problems = append(converted.Problems, fmt.Sprintf(
				"behind the same address, %s is not ready: %s", each.replica, each.server.Detail))
		}
		converted.Problems = append(converted.Problems, each.problems...)
	}
	converted.ReplicaId = strings.Trim(converted.GetReplicaId(), ", ")
	return converted
}

// standingOf tells whether a server is an endpoint now, and why it is or is not to be one.
func standingOf(each present, found *endpointsSurvey) (published bool, why string) {
	if found == nil {
		return false, notKnown
	}
	published = slices.Contains(apiservers.PublishedInSlices(found.snapshot.Slices), each.name)
	i := slices.IndexFunc(found.plan.Standings, func(s apiservers.Standing) bool { return s.Address == each.server.Address })
	switch {
	case i < 0:
		return published, notChosen
	case each.source == fromFlag && found.plan.Standings[i].Wanted:
		return published, isStatic
	default:
		return published, found.plan.Standings[i].Why
	}
}

func apiServerOf(each present) *bootstrapv1.APIServer {
	converted := &bootstrapv1.APIServer{
		Name:        "apiservers/" + each.name,
		Address:     each.name,
		Port:        each.server.Port,
		Ready:       each.server.Ready,
		ProbeDetail: each.server.Detail,
		ProbeTime:   timeOf(each.probed),
		ReplicaId:   each.replica,
		Source:      sourceOf(each.source),
		Problems:    slices.Clone(each.problems),
		Key:         each.key,
	}
	if each.ttl > 0 {
		converted.Ttl = durationpb.New(each.ttl)
	}
	return converted
}

func sourceOf(from source) bootstrapv1.APIServer_Source {
	switch from {
	case fromSidecar:
		return bootstrapv1.APIServer_SOURCE_SIDECAR
	case fromMasterLease:
		return bootstrapv1.APIServer_SOURCE_MASTER_LEASE
	case fromFlag:
		return bootstrapv1.APIServer_SOURCE_STATIC
	default:
		return bootstrapv1.APIServer_SOURCE_UNSPECIFIED
	}
}

// timeOf leaves out the zero time, which means that there was no probe yet.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
