package api

import (
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// holder returns false if the class is not served.
func (c converter) holder(h *leasev1.Holder) (session.Holder, bool) {
	id, served := c.catalog.ByName(h.GetClass())
	return session.Holder{Key: session.Key{Class: id, Name: h.GetName()}, Boot: h.GetBootId()}, served
}

// registration returns false if the class is not served.
func (c converter) registration(h *leasev1.Holder, report *leasev1.Report, sequence uint64) (sessioncontroller.Registration, bool) {
	holder, served := c.holder(h)
	registration := sessioncontroller.Registration{
		Holder: holder, Shard: c.catalog.Shard(h.GetClass(), h.GetName()), Sequence: sequence,
	}
	if report != nil {
		registration.Report = new(reportFrom(report))
	}
	return registration, served
}

// maxAgentText is the longest text that is kept of what an agent says of itself.
const maxAgentText = 64

// agentFrom returns what a client says of itself, without characters that a terminal would act on.
func agentFrom(client *metav1.ClientInfo) session.Agent {
	return session.Agent{
		Name: shortText(client.GetAgent()), Version: shortText(client.GetVersion()), Mode: shortText(client.GetMode()),
	}
}

func shortText(text string) string {
	var short strings.Builder
	n := 0
	for _, r := range text {
		if n == maxAgentText {
			break
		}
		if unicode.IsPrint(r) {
			short.WriteRune(r)
			n++
		}
	}
	return short.String()
}

func reportFrom(r *leasev1.Report) sessioncontroller.Report {
	report := sessioncontroller.Report{
		Observed: r.GetObservedAge() != nil, ObservedAge: ageFrom(r.GetObservedAge()),
		CutOff: r.GetCutOffAge() != nil, CutOffAge: ageFrom(r.GetCutOffAge()),
	}
	for _, c := range r.GetConditions() {
		condition := sessioncontroller.ReportedCondition{
			Type: c.GetType(), Reason: c.GetReason(), Message: c.GetMessage(), Status: statusFrom(c.GetStatus()), TransitionAge: -1,
		}
		if c.GetTransitionAge() != nil {
			condition.TransitionAge = ageFrom(c.TransitionAge)
		}
		report.Conditions = append(report.Conditions, condition)
	}
	return report
}

// ageFrom returns an age that the session controller can subtract from any time.
func ageFrom(d *durationpb.Duration) time.Duration {
	return min(max(d.AsDuration(), 0), sessioncontroller.MaxAge)
}

// statusFrom returns STATUS_UNSPECIFIED for a status of a newer API.
func statusFrom(status metav1.Condition_Status) sessioncontroller.ConditionStatus {
	if _, known := metav1.Condition_Status_name[int32(status)]; !known {
		return sessioncontroller.ConditionStatus(metav1.Condition_STATUS_UNSPECIFIED)
	}
	return sessioncontroller.ConditionStatus(status)
}

// reportOf returns nil for nil.
func reportOf(r *sessioncontroller.Report) *leasev1.Report {
	if r == nil {
		return nil
	}
	report := &leasev1.Report{}
	if r.Observed {
		report.ObservedAge = durationpb.New(r.ObservedAge)
	}
	if r.CutOff {
		report.CutOffAge = durationpb.New(r.CutOffAge)
	}
	for i := range r.Conditions {
		c := &r.Conditions[i]
		condition := &leasev1.ReportedCondition{Type: c.Type, Status: metav1.Condition_Status(c.Status), Reason: c.Reason, Message: c.Message}
		if c.TransitionAge >= 0 {
			condition.TransitionAge = durationpb.New(c.TransitionAge)
		}
		report.Conditions = append(report.Conditions, condition)
	}
	return report
}

func grantOf(g sessioncontroller.Grant) *leasev1.Grant {
	return &leasev1.Grant{Epoch: g.Epoch, NextInterval: durationpb.New(g.Interval), Ttl: durationpb.New(g.TTL)}
}
