package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

const introduction = `# Recordings beside upstream

Two clusters with real nodes went through the same steps, one after the other on one machine: two control-plane nodes and two
workers with kubelet, containerd and runc. On the side "upstream", kube-controller-manager ran all of its controllers, and
each kube-apiserver published its own address; no program of Trivet ran. On the side "ours", Trivet replaced the controllers
of EndpointSlices, of node health and of taint eviction, and the publication of addresses. There, each node has an agent: w1 in
endpoint mode, the others in probe mode.

A client of kube-apiserver recorded Nodes (conditions, taints, labels), their Leases, and the Pods, Services, Endpoints,
EndpointSlices and Events of the namespaces "default" and "recorded". Each change has the time since its step began. Names and
addresses that differ in each run are replaced by roles: "web-1" is the first Pod of the Service "web". A time differs if it
is more than %.1f times the other and more than %.0f s away. Pods tolerate a lost Node for 2 s.

` + "`make recordings`" + ` records both sides anew, as root, and writes this page; a test compares the saved recordings of
` + "`test/cluster/testdata/recordings`" + ` with the page and with the list of intended differences in
` + "`test/cluster/allowances_test.go`" + `. A difference without a reason fails the test, and so does a reason without a difference.

`

// pageOf is docs/upstream-recordings.md.
func pageOf(t *testing.T, c recording.Comparison) string {
	t.Helper()
	var text strings.Builder
	tolerance := rules().Tolerance
	fmt.Fprintf(&text, introduction, tolerance.Ratio, tolerance.Absolute.Seconds())
	text.WriteString("| | upstream | ours |\n|---|---|---|\n")
	fmt.Fprintf(&text, "| recorded | %s | %s |\n", c.Upstream.Began.Format("2006-01-02 15:04"), c.Ours.Began.Format("2006-01-02 15:04"))
	names := slices.Collect(maps.Keys(c.Upstream.Versions))
	for name := range c.Ours.Versions {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&text, "| %s | %s | %s |\n", name, c.Upstream.Versions[name], c.Ours.Versions[name])
	}
	text.WriteString("\n## Comparison\n\n")
	if err := c.Print(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
