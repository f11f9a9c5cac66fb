package api

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func changesOf(changes []baseline.Change) []*statusv1.Change {
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

func verbOf(verb baseline.Verb) statusv1.Change_Verb {
	switch verb {
	case baseline.Create:
		return statusv1.Change_VERB_CREATE
	case baseline.Update:
		return statusv1.Change_VERB_UPDATE
	case baseline.Delete:
		return statusv1.Change_VERB_DELETE
	case baseline.Report:
		return statusv1.Change_VERB_REPORT
	default:
		return statusv1.Change_VERB_UNSPECIFIED
	}
}

// timeOf leaves the zero time out.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
