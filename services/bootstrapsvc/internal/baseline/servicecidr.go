package baseline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/wording"
)

const (
	// CIDRMissing: the cluster serves ServiceCIDRs and has no default one.
	CIDRMissing Reason = "SERVICE_CIDR_MISSING"
	// CIDRTerminating: the default ServiceCIDR is being deleted.
	CIDRTerminating Reason = "SERVICE_CIDR_TERMINATING"
	// CIDRNotReady: the default ServiceCIDR is not ready, so no ClusterIP is allocated from it.
	CIDRNotReady Reason = "SERVICE_CIDR_NOT_READY"
	// CIDRDiffers: the ranges of the default ServiceCIDR are not the configured ones.
	CIDRDiffers Reason = "SERVICE_CIDR_DIFFERS"
	// CIDRUnreadable: the default ServiceCIDR cannot be read, or has a range that cannot be parsed.
	CIDRUnreadable Reason = "SERVICE_CIDR_UNREADABLE"
)

// ServiceCIDR is the default ServiceCIDR as it was read. kube-apiserver owns it.
type ServiceCIDR struct {
	// Served says whether the cluster serves the kind, as clusters from 1.33 on do.
	Served bool
	// Object is nil if it does not exist.
	Object *networkingv1.ServiceCIDR
	// Unread says why it could not be read; empty if it could.
	Unread string
}

// Ranges returns its ranges in their order; none if one of them cannot be parsed.
func (c ServiceCIDR) Ranges() []netip.Prefix {
	ranges, _ := c.parse()
	return ranges
}

func (c ServiceCIDR) parse() ([]netip.Prefix, error) {
	if c.Object == nil {
		return nil, nil
	}
	var ranges []netip.Prefix
	for _, text := range c.Object.Spec.CIDRs {
		parsed, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a range", text)
		}
		ranges = append(ranges, parsed.Masked())
	}
	return ranges, nil
}

// Ready says whether kube-apiserver allocates ClusterIPs from it.
func (c ServiceCIDR) Ready() bool { return c.Object != nil && IsReady(c.Object) }

// IsReady says whether kube-apiserver allocates ClusterIPs from a ServiceCIDR: it is not being
// deleted, and no condition says that it is not ready. Without kube-controller-manager, there is no
// condition.
func IsReady(cidr *networkingv1.ServiceCIDR) bool {
	condition := meta.FindStatusCondition(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return cidr.DeletionTimestamp == nil && (condition == nil || condition.Status == metav1.ConditionTrue)
}

// ReportServiceCIDR reports what is wrong with the default ServiceCIDR. configured are the ranges
// that it should have; empty if they are not configured. It plans no write: the ranges are
// immutable, and kube-apiserver owns the object.
func ReportServiceCIDR(configured []netip.Prefix, found ServiceCIDR) []Change {
	switch {
	case found.Unread != "":
		return []Change{report(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: ServiceName}}, CIDRUnreadable,
			"servicecidr kubernetes cannot be read: "+found.Unread)}
	case !found.Served:
		return nil
	case found.Object == nil:
		return []Change{report(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: ServiceName}}, CIDRMissing,
			"servicecidr kubernetes does not exist; kube-apiserver creates it within seconds, and allocates no ClusterIP before")}
	}
	var reports []Change
	add := func(reason Reason, detail string) {
		reports = append(reports, report(found.Object.DeepCopy(), reason, "servicecidr kubernetes "+detail))
	}
	if found.Object.DeletionTimestamp != nil {
		add(CIDRTerminating, "is being deleted"+since(found.Object.DeletionTimestamp)+cidrHeldBy(found.Object.Finalizers)+
			"; no ClusterIP is allocated from it any more")
	} else if !found.Ready() {
		add(CIDRNotReady, "is not ready, so no ClusterIP is allocated from it: "+unreadiness(found.Object.Status.Conditions))
	}
	has, err := found.parse()
	switch {
	case err != nil:
		add(CIDRUnreadable, "cannot be read: "+err.Error())
	case len(configured) > 0 && !slices.Equal(has, configured):
		add(CIDRDiffers, fmt.Sprintf("has %s, and --service-cluster-ip-range says %s; its ranges cannot be changed in place",
			rangesText(has), rangesText(configured)))
	}
	return reports
}

func cidrHeldBy(finalizers []string) string {
	if len(finalizers) == 0 {
		return ""
	}
	return ", held by finalizers " + strings.Join(slices.Sorted(slices.Values(finalizers)), ", ")
}

func unreadiness(conditions []metav1.Condition) string {
	condition := meta.FindStatusCondition(conditions, networkingv1.ServiceCIDRConditionReady)
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, wording.Clip(condition.Message, maxMessage)), ": ")
}

func rangesText(ranges []netip.Prefix) string {
	if len(ranges) == 0 {
		return "none"
	}
	texts := make([]string, 0, len(ranges))
	for _, one := range ranges {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ",")
}
