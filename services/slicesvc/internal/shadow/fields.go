package shadow

import (
	"encoding/json"
	"fmt"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/internal/shadow/difference"
)

// fields collects fields that differ.
type fields struct{ found []difference.Field }

// compare adds a field if the values differ.
func (f *fields) compare(path string, before, after any) {
	if !equality.Semantic.DeepEqual(before, after) {
		f.found = append(f.found, difference.Field{Path: path, Before: encode(before), After: encode(after)})
	}
}

func (f *fields) maps(path string, before, after map[string]string) {
	for key, value := range before {
		if next, ok := after[key]; !ok {
			f.compare(fmt.Sprintf("%s[%q]", path, key), value, nil)
		} else {
			f.compare(fmt.Sprintf("%s[%q]", path, key), value, next)
		}
	}
	for key, value := range after {
		if _, ok := before[key]; !ok {
			f.compare(fmt.Sprintf("%s[%q]", path, key), nil, value)
		}
	}
}

// encode returns JSON; "" for a value that is absent.
func encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil || string(text) == "null" {
		return ""
	}
	return string(text)
}

// pathOf names an endpoint by its addresses and its Pod, because its place in a slice means
// nothing.
func pathOf(endpoint placed) string {
	name := strings.Join([]string{endpoint.identity.Addresses, endpoint.identity.PodName, endpoint.identity.Hostname}, " ")
	return fmt.Sprintf("endpoints[%q]", strings.TrimSpace(name))
}

// endpointFields returns the fields in which two versions of an endpoint differ, and whether these
// are hints alone.
func endpointFields(path string, before, after *discoveryv1.Endpoint) (found []difference.Field, hintsOnly bool) {
	var f fields
	f.compare(path+".conditions.ready", before.Conditions.Ready, after.Conditions.Ready)
	f.compare(path+".conditions.serving", before.Conditions.Serving, after.Conditions.Serving)
	f.compare(path+".conditions.terminating", before.Conditions.Terminating, after.Conditions.Terminating)
	f.compare(path+".nodeName", before.NodeName, after.NodeName)
	f.compare(path+".zone", before.Zone, after.Zone)
	f.compare(path+".targetRef", before.TargetRef, after.TargetRef)
	f.compare(path+".deprecatedTopology", before.DeprecatedTopology, after.DeprecatedTopology)
	f.compare(path+".addresses", before.Addresses, after.Addresses)
	others := len(f.found)
	f.compare(path+".hints", before.Hints, after.Hints)
	return f.found, others == 0
}
