package apiservers

import (
	"fmt"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// NewPlan decides how the Endpoints object and the EndpointSlices must change.
func NewPlan(want Want, have Snapshot) Plan {
	if want.Kind == Untouched {
		return Plan{Statuses: (&desired{}).statuses(have, cause{Unmanaged, "endpoints are not managed by Trivet"})}
	}
	foreign := reportForeign(want, have.Slices)
	if !want.ServiceIP.IsValid() {
		return Plan{
			Statuses: (&desired{}).statuses(have, cause{FamilyUnknown, "the family of the service default/kubernetes is not known"}),
			Changes: append(foreign, report(FamilyUnknown,
				"the service default/kubernetes has no ClusterIP and the service range is unknown; set --service-cluster-ip-range")),
		}
	}
	family := FamilyOf(want.ServiceIP)
	primary := selectServers(want, family, have)
	if len(primary.addresses) == 0 {
		return Plan{
			Statuses: primary.statuses(have, cause{NoServerReady, "no kube-apiserver is ready, so the published addresses stay"}),
			Changes:  slices.Concat(primary.reports, planWithoutReady(want, have), foreign),
		}
	}
	plan := Plan{Addresses: primary.addresses, Changes: primary.reports}
	if !have.SlicesUnread {
		plan.Changes = append(plan.Changes, planSlice(baseline.ServiceName, primary, have.Slices)...)
	}
	why := primary.why
	if want.DualStack {
		secondary := selectServers(want, otherFamily(family), have)
		plan.Addresses = slices.Concat(plan.Addresses, secondary.addresses)
		plan.Changes = append(plan.Changes, secondary.reports...)
		if !have.SlicesUnread {
			plan.Changes = append(plan.Changes, planSecondSlice(want, secondary, have)...)
		}
		why = maps.Clone(why)
		maps.Copy(why, secondary.why)
	}
	plan.Changes = append(plan.Changes, planUnwantedSlices(want, have.Slices)...)
	if !have.EndpointsUnread {
		plan.Changes = append(plan.Changes, planEndpoints(primary, have.Endpoints)...)
	}
	plan.Changes = append(plan.Changes, foreign...)
	both := desired{addresses: plan.Addresses, why: why}
	plan.Statuses = both.statuses(have, cause{})
	return plan
}

// planSecondSlice plans the slice of the second family. Without a ready server of this family, it
// only removes the servers that leave.
func planSecondSlice(want Want, secondary desired, have Snapshot) []baseline.Change {
	name := want.secondSliceName()
	if len(secondary.addresses) > 0 {
		return planSlice(name, secondary, have.Slices)
	}
	second := sliceNamed(have.Slices, name)
	if second == nil {
		return nil
	}
	return planLeaving(want, Snapshot{Servers: have.Servers, Slices: []*discoveryv1.EndpointSlice{second}})
}

// planWithoutReady plans for no ready server: no change, unless the last server stops in good
// order.
func planWithoutReady(want Want, have Snapshot) []baseline.Change {
	withdrawals := planLeaving(want, have)
	reporting := len(have.Servers)
	switch {
	case want.Kind == Static && reporting == 0:
		return []baseline.Change{report(StaticUnresolved, want.Unresolved+"; the published addresses stay until it does")}
	case len(withdrawals) > 0, len(want.Leaving) > 0 && len(leaving(want, have.Servers)) > 0:
		return withdrawals
	case reporting == 0:
		return []baseline.Change{report(NoServerReports,
			"no kube-apiserver reports; the published addresses stay until one does")}
	default:
		return []baseline.Change{report(NoServerReady, fmt.Sprintf(
			"none of %d reporting kube-apiservers can be used; the published addresses stay until one can", reporting))}
	}
}

// planLeaving removes the servers that leave from the published addresses, or reports that the last
// one stays. The remaining addresses stay: they may belong to servers whose key is missing for a
// moment.
func planLeaving(want Want, have Snapshot) []baseline.Change {
	var texts []string
	for _, address := range leaving(want, have.Servers) {
		texts = append(texts, address.String())
	}
	isLeaving := func(address string) bool { return slices.Contains(texts, address) }
	detail := "kube-apiserver " + addressesText(texts) + " stops and no other is ready; its address is removed"
	var changes []baseline.Change
	for _, slice := range sortedByName(have.Slices) {
		if isManaged(slice) && slices.ContainsFunc(publishedIn(slice), isLeaving) {
			changes = append(changes, baseline.Change{
				Verb: planned.Update, Object: sliceWithout(slice, isLeaving), Before: slice.DeepCopy(), Reason: LastServerLeft, Detail: detail,
			})
		}
	}
	if slices.ContainsFunc(PublishedInEndpoints(have.Endpoints), isLeaving) {
		changes = append(changes, baseline.Change{
			Verb: planned.Update, Object: endpointsWithout(have.Endpoints, isLeaving), Before: have.Endpoints.DeepCopy(), Reason: LastServerLeft, Detail: detail,
		})
	}
	if len(changes) > 0 && want.KeepLast {
		return []baseline.Change{report(LastServerKept, "the last kube-apiserver stops; its address stays, because --keep-last-address is set")}
	}
	return changes
}
