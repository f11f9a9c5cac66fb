package desired

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Identity is what makes an endpoint the same endpoint over time. While it stays, all other fields
// of the endpoint may change in place. Two Pods with the same address, for example when an address
// is reused, have two identities.
type Identity struct {
	// Addresses are the canonical addresses, joined by commas.
	Addresses string
	// Hostname is empty for none.
	Hostname string
	// PodNamespace and PodName name the Pod of the endpoint, or the target of a mirrored one.
	PodNamespace, PodName string
}

// Endpoint is an endpoint as a comparable value: equal endpoints are ==.
type Endpoint struct {
	Identity

	Target Target
	// Node and Zone are empty when not known.
	Node, Zone string

	Ready, Serving, Terminating bool
	// Mirrored tells that the endpoint is an address of an Endpoints object: Ready is its only
	// condition, it may have any target or none, and its hints belong to other writers.
	Mirrored bool

	// HintZone and HintNode are the hints; empty for none.
	HintZone, HintNode string
}

// Object returns the endpoint in the API's type.
func (e Endpoint) Object() discoveryv1.Endpoint {
	if e.Mirrored {
		return e.mirroredObject()
	}
	// The API's type has pointers to all of these. Pointers into one small object do not keep all
	// of e in memory.
	values := &struct {
		node, zone                  string
		ready, serving, terminating bool
	}{e.Node, e.Zone, e.Ready, e.Serving, e.Terminating}
	object := discoveryv1.Endpoint{
		Addresses: strings.Split(e.Addresses, ","),
		Conditions: discoveryv1.EndpointConditions{
			Ready:       &values.ready,
			Serving:     &values.serving,
			Terminating: &values.terminating,
		},
		TargetRef: &corev1.ObjectReference{
			Kind:      "Pod",
			Namespace: e.PodNamespace,
			Name:      e.PodName,
			UID:       types.UID(e.Target),
		},
	}
	if e.Node != "" {
		object.NodeName = &values.node
	}
	if e.Zone != "" {
		object.Zone = &values.zone
	}
	if e.Hostname != "" {
		hostname := e.Hostname
		object.Hostname = &hostname
	}
	object.Hints = e.hints()
	return object
}

func (e Endpoint) hints() *discoveryv1.EndpointHints {
	if e.HintZone == "" && e.HintNode == "" {
		return nil
	}
	hints := &discoveryv1.EndpointHints{}
	if e.HintZone != "" {
		hints.ForZones = []discoveryv1.ForZone{{Name: e.HintZone}}
	}
	if e.HintNode != "" {
		hints.ForNodes = []discoveryv1.ForNode{{Name: e.HintNode}}
	}
	return hints
}

// FromObject reads an endpoint from the API's type. It is exact when Object returns the same again,
// except for the resourceVersion of a Pod, which earlier versions of upstream wrote, and for the
// hints of a mirrored endpoint. An endpoint with no condition but ready is mirrored. An inexact
// endpoint was written by another writer: its identity is valid, its other fields may be
// incomplete.
func FromObject(object *discoveryv1.Endpoint) (endpoint Endpoint, exact bool) {
	exact = len(object.DeprecatedTopology) == 0
	endpoint.HintZone, endpoint.HintNode, exact = readHints(object.Hints, exact)
	endpoint.Addresses = joined(object.Addresses)
	endpoint.Hostname, exact = optional(object.Hostname, exact)
	endpoint.Node, exact = optional(object.NodeName, exact)
	endpoint.Zone, exact = optional(object.Zone, exact)
	endpoint.Ready, exact = required(object.Conditions.Ready, exact)
	endpoint.Serving, exact = required(object.Conditions.Serving, exact)
	endpoint.Terminating, exact = required(object.Conditions.Terminating, exact)
	if object.Conditions.Ready != nil && object.Conditions.Serving == nil && object.Conditions.Terminating == nil {
		return endpoint.readMirrored(object)
	}
	if target := object.TargetRef; target != nil {
		endpoint.PodNamespace, endpoint.PodName, endpoint.Target = target.Namespace, target.Name, Target(target.UID)
		exact = exact && target.Kind == "Pod" && target.APIVersion == "" && target.FieldPath == ""
	} else {
		exact = false
	}
	return endpoint, exact
}

// joined is strings.Join without the allocation in the common case of one address.
func joined(addresses []string) string {
	if len(addresses) == 1 {
		return addresses[0]
	}
	return strings.Join(addresses, ",")
}

// readHints reads hints. They are exact when each kind has at most one hint, and there is at least
// one.
func readHints(hints *discoveryv1.EndpointHints, exact bool) (zone, node string, stillExact bool) {
	if hints == nil {
		return "", "", exact
	}
	if len(hints.ForZones) > 0 {
		zone = hints.ForZones[0].Name
	}
	if len(hints.ForNodes) > 0 {
		node = hints.ForNodes[0].Name
	}
	single := len(hints.ForZones) <= 1 && len(hints.ForNodes) <= 1 &&
		len(hints.ForZones)+len(hints.ForNodes) > 0 &&
		(zone != "") == (len(hints.ForZones) == 1) && (node != "") == (len(hints.ForNodes) == 1)
	return zone, node, exact && single
}

// optional reads a string that Object leaves out when it is empty.
func optional(value *string, exact bool) (string, bool) {
	if value == nil {
		return "", exact
	}
	return *value, exact && *value != ""
}

// required reads a condition that Object always sets.
func required(value *bool, exact bool) (bool, bool) {
	if value == nil {
		return false, false
	}
	return *value, exact
}
