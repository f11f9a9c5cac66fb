package api

import (
	"fmt"
	"maps"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadow"
)

// fieldChanges returns the fields in which two versions of a slice differ, ordered by path. An
// endpoint is named by its addresses, and by its Pod if several have the same ones, because its
// place in the list means nothing. The whole endpoint is one field if it comes or goes.
func fieldChanges(before, after *discoveryv1.EndpointSlice) []*metav1.FieldChange {
	var fields planned.Fields
	fields.CompareMaps("metadata.labels", before.Labels, after.Labels)
	fields.CompareMaps("metadata.annotations", before.Annotations, after.Annotations)
	if desired.KeyOf(before.Ports) != desired.KeyOf(after.Ports) {
		fields.Compare("ports", before.Ports, after.Ports)
	}
	from, to := byIdentity(before.Endpoints), byIdentity(after.Endpoints)
	all := maps.Clone(from)
	maps.Copy(all, to)
	named := map[string]int{}
	for identity := range all {
		named[identity.Addresses]++
	}
	for identity := range all {
		name := identity.Addresses
		if named[name] > 1 {
			name = strings.Join([]string{name, identity.PodName, identity.Hostname}, " ")
		}
		path := fmt.Sprintf("endpoints[%q]", strings.TrimSpace(name))
		if from[identity] == nil || to[identity] == nil {
			fields.Compare(path, from[identity], to[identity])
			continue
		}
		found, _ := shadow.EndpointFields(path, from[identity], to[identity])
		fields = append(fields, found...)
	}
	fields.Sort()
	return fields.Proto()
}

// byIdentity returns the endpoints by what makes them the same endpoint over time. Of two with the
// same identity it has the last one.
func byIdentity(endpoints []discoveryv1.Endpoint) map[desired.Identity]*discoveryv1.Endpoint {
	found := make(map[desired.Identity]*discoveryv1.Endpoint, len(endpoints))
	for i := range endpoints {
		endpoint, _ := desired.FromObject(&endpoints[i])
		found[endpoint.Identity] = &endpoints[i]
	}
	return found
}
