package shadow

import (
	"fmt"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
)

// pathOf names an endpoint by its addresses and its Pod, because its place in a slice means
// nothing.
func pathOf(endpoint placed) string {
	name := strings.Join([]string{endpoint.identity.Addresses, endpoint.identity.PodName, endpoint.identity.Hostname}, " ")
	return fmt.Sprintf("endpoints[%q]", strings.TrimSpace(name))
}

// EndpointFields returns the fields in which two versions of an endpoint differ, and whether these
// are hints alone.
func EndpointFields(path string, before, after *discoveryv1.Endpoint) (found planned.Fields, hintsOnly bool) {
	found.Compare(path+".conditions.ready", before.Conditions.Ready, after.Conditions.Ready)
	found.Compare(path+".conditions.serving", before.Conditions.Serving, after.Conditions.Serving)
	found.Compare(path+".conditions.terminating", before.Conditions.Terminating, after.Conditions.Terminating)
	found.Compare(path+".nodeName", before.NodeName, after.NodeName)
	found.Compare(path+".zone", before.Zone, after.Zone)
	found.Compare(path+".targetRef", before.TargetRef, after.TargetRef)
	found.Compare(path+".deprecatedTopology", before.DeprecatedTopology, after.DeprecatedTopology)
	found.Compare(path+".addresses", before.Addresses, after.Addresses)
	others := len(found)
	found.Compare(path+".hints", before.Hints, after.Hints)
	return found, others == 0
}
