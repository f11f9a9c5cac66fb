package baseline

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
)

func readyCIDR(edits ...func(*networkingv1.ServiceCIDR)) ServiceCIDR {
	object := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Finalizers: []string{"networking.k8s.io/service-cidr-finalizer"}},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/16", "fd00::/108"}},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{
			{Type: "Other", Status: metav1.ConditionFalse},
			{Type: "Ready", Status: metav1.ConditionTrue},
		}},
	}
	for _, edit := range edits {
		edit(object)
	}
	return ServiceCIDR{Served: true, Object: object}
}

func prefixes(texts ...string) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range texts {
		ranges = append(ranges, netip.MustParsePrefix(text))
	}
	return ranges
}

func TestReportServiceCIDR(t *testing.T) {
	unready := func(conditions ...metav1.Condition) func(*networkingv1.ServiceCIDR) {
		return func(c *networkingv1.ServiceCIDR) { c.Status.Conditions = conditions }
	}
	cases := map[string]struct {
		configured []netip.Prefix
		found      ServiceCIDR
		want       []string
	}{
		"ready":                                  {found: readyCIDR()},
		"ready, and as configured":               {configured: prefixes("10.0.0.0/16", "fd00::/108"), found: readyCIDR()},
		"a cluster that does not serve the kind": {configured: prefixes("10.0.0.0/16"), found: ServiceCIDR{}},
		"missing": {found: ServiceCIDR{Served: true}, want: []string{
			"SERVICE_CIDR_MISSING servicecidr kubernetes does not exist; kube-apiserver creates it within seconds, and allocates no ClusterIP before",
		}},
		"without a condition, as without kube-controller-manager": {found: readyCIDR(unready())},
		"unknown": {
			found: readyCIDR(unready(metav1.Condition{Type: "Ready", Status: metav1.ConditionUnknown, Reason: "Checking"})),
			want: []string{
				"SERVICE_CIDR_NOT_READY servicecidr kubernetes is not ready, so no ClusterIP is allocated from it: Unknown Checking",
			},
		},
		"not ready": {
			found: readyCIDR(unready(metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Broken", Message: "so it is"})),
			want: []string{
				"SERVICE_CIDR_NOT_READY servicecidr kubernetes is not ready, so no ClusterIP is allocated from it: False Broken: so it is",
			},
		},
		"being deleted is not also not ready": {
			found: readyCIDR(unready(), func(c *networkingv1.ServiceCIDR) {
				c.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			}),
			want: []string{
				"SERVICE_CIDR_TERMINATING servicecidr kubernetes is being deleted since 2026-01-02T03:04:05Z, held by finalizers " +
					"networking.k8s.io/service-cidr-finalizer; no ClusterIP is allocated from it any more",
			},
		},
		"other ranges than configured": {configured: prefixes("10.0.0.0/16"), found: readyCIDR(), want: []string{
			"SERVICE_CIDR_DIFFERS servicecidr kubernetes has 10.0.0.0/16,fd00::/108, and --service-cluster-ip-range says 10.0.0.0/16; " +
				"its ranges cannot be changed in place",
		}},
		"a range that is none": {
			configured: prefixes("10.0.0.0/16"),
			found:      readyCIDR(func(c *networkingv1.ServiceCIDR) { c.Spec.CIDRs = []string{"10.0.0.0/16", "many"} }),
			want:       []string{`SERVICE_CIDR_UNREADABLE servicecidr kubernetes cannot be read: "many" is not a range`},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range ReportServiceCIDR(test.configured, test.found) {
				if c.Verb != planned.Report || c.Object.GetName() != "kubernetes" || c.Kind().Kind != "ServiceCIDR" {
					t.Errorf("%s %s %s, want a report about ServiceCIDR kubernetes", c.Verb, c.Kind().Kind, c.Object.GetName())
				}
				got = append(got, string(c.Reason)+" "+c.Detail)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceCIDR_RangesAreAllOrNone(t *testing.T) {
	compare := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	whole := readyCIDR(func(c *networkingv1.ServiceCIDR) { c.Spec.CIDRs = []string{"10.0.0.7/16", "fd00::/108"} })
	if diff := cmp.Diff(prefixes("10.0.0.0/16", "fd00::/108"), whole.Ranges(), compare); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
	half := readyCIDR(func(c *networkingv1.ServiceCIDR) { c.Spec.CIDRs[1] = "fd00::/1080" })
	if got := half.Ranges(); got != nil {
		t.Errorf("ranges = %v, want none, because one of them is unknown", got)
	}
}
