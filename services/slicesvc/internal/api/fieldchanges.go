package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

const (
	// maxFieldChanges bounds the field changes of one change.
	maxFieldChanges = 100
	// maxFieldValue bounds the JSON of a value, in bytes.
	maxFieldValue = 1024
)

// fieldChanges returns the fields in which two versions of a slice differ, ordered by path. An
// endpoint is named by its addresses, and by its Pod if several have the same ones, because its
// place in the list means nothing.
func fieldChanges(before, after *discoveryv1.EndpointSlice) []*metav1.FieldChange {
	var d differ
	d.maps("metadata.labels", before.Labels, after.Labels)
	d.maps("metadata.annotations", before.Annotations, after.Annotations)
	if desired.KeyOf(before.Ports) != desired.KeyOf(after.Ports) {
		d.compare("ports", before.Ports, after.Ports)
	}
	d.endpoints(before.Endpoints, after.Endpoints)
	slices.SortStableFunc(d.changes, func(a, b *metav1.FieldChange) int { return cmp.Compare(a.GetPath(), b.GetPath()) })
	return d.changes[:min(len(d.changes), maxFieldChanges)]
}

// differ collects field changes.
type differ struct{ changes []*metav1.FieldChange }

// compare adds a change if the values differ. A nil value is absent.
func (d *differ) compare(path string, before, after any) {
	if !equality.Semantic.DeepEqual(before, after) {
		d.changes = append(d.changes, &metav1.FieldChange{Path: wording.Valid(path), Before: encode(before), After: encode(after)})
	}
}

// encode returns JSON, cut at maxFieldValue. It is empty for a value that is absent.
func encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil || string(text) == "null" {
		return ""
	}
	if len(text) > maxFieldValue {
		return strings.ToValidUTF8(string(text[:maxFieldValue]), "")
	}
	return wording.Valid(string(text))
}

func (d *differ) maps(path string, before, after map[string]string) {
	for key, value := range before {
		if next, ok := after[key]; !ok {
			d.compare(fmt.Sprintf("%s[%q]", path, key), value, nil)
		} else {
			d.compare(fmt.Sprintf("%s[%q]", path, key), value, next)
		}
	}
	for key, value := range after {
		if _, ok := before[key]; !ok {
			d.compare(fmt.Sprintf("%s[%q]", path, key), nil, value)
		}
	}
}

func (d *differ) endpoints(before, after []discoveryv1.Endpoint) {
	from, to := byIdentity(before), byIdentity(after)
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
		d.endpoint(fmt.Sprintf("endpoints[%q]", strings.TrimSpace(name)), from[identity], to[identity])
	}
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

// endpoint adds the whole endpoint if it comes or goes, and otherwise its fields that differ.
func (d *differ) endpoint(path string, before, after *discoveryv1.Endpoint) {
	if before == nil || after == nil {
		d.compare(path, before, after)
		return
	}
	d.compare(path+".conditions.ready", before.Conditions.Ready, after.Conditions.Ready)
	d.compare(path+".conditions.serving", before.Conditions.Serving, after.Conditions.Serving)
	d.compare(path+".conditions.terminating", before.Conditions.Terminating, after.Conditions.Terminating)
	d.compare(path+".nodeName", before.NodeName, after.NodeName)
	d.compare(path+".zone", before.Zone, after.Zone)
	d.compare(path+".hints", before.Hints, after.Hints)
	d.compare(path+".targetRef", before.TargetRef, after.TargetRef)
	d.compare(path+".deprecatedTopology", before.DeprecatedTopology, after.DeprecatedTopology)
}
