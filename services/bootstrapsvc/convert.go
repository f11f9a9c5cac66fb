package bootstrapsvc

import (
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/registry"
)

func textsOf(addresses []netip.Addr) []string {
	var texts []string
	for _, address := range addresses {
		texts = append(texts, address.String())
	}
	return texts
}

func changesOf(changes []change.Change) []*statusv1.Change {
	var converted []*statusv1.Change
	for _, c := range changes {
		apiVersion, kind := c.Kind().ToAPIVersionAndKind()
		converted = append(converted, &statusv1.Change{
			Verb: verbOf(c.Verb),
			Object: &statusv1.ObjectReference{
				ApiVersion: apiVersion,
				Kind:       kind,
				Namespace:  c.Object.GetNamespace(),
				Name:       c.Object.GetName(),
				Uid:        string(c.Object.GetUID()),
			},
			Reason: string(c.Reason),
			Detail: c.Detail,
		})
	}
	return converted
}

func verbOf(verb change.Verb) statusv1.Change_Verb {
	switch verb {
	case change.Create:
		return statusv1.Change_VERB_CREATE
	case change.Update:
		return statusv1.Change_VERB_UPDATE
	case change.Delete:
		return statusv1.Change_VERB_DELETE
	case change.Report:
		return statusv1.Change_VERB_REPORT
	default:
		return statusv1.Change_VERB_UNSPECIFIED
	}
}

func apiServersOf(entries []registry.Entry) []*bootstrapv1.APIServer {
	var converted []*bootstrapv1.APIServer
	for _, entry := range entries {
		converted = append(converted, apiServerOf(entry))
	}
	return converted
}

func apiServerOf(entry registry.Entry) *bootstrapv1.APIServer {
	detail := entry.Detail
	if entry.Unreadable != "" {
		detail = entry.Unreadable
	}
	converted := &bootstrapv1.APIServer{
		Name:        "apiservers/" + entry.Name,
		Address:     entry.Name,
		Port:        entry.Port,
		Ready:       entry.Ready,
		ProbeDetail: detail,
		ProbeTime:   timeOf(entry.ProbeTime),
		ReplicaId:   entry.ReplicaID,
	}
	if entry.TTL > 0 {
		converted.Ttl = durationpb.New(entry.TTL)
	}
	return converted
}

// timeOf leaves out the zero time, which means that there was no probe yet.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
