package desired

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Identity is what makes an endpoint the same endpoint over time: while it
// stays, everything else about the endpoint may change in place. Two pods that
// share an address, as when an address is reused, have two identities.
type Identity struct {
	// Addresses are the canonical addresses, joined by commas.
	Addresses string
	// Hostname is the endpoint's hostname; empty for none.
	Hostname string
	// PodNamespace and PodName name the pod behind the endpoint.
	PodNamespace, PodName string
}

// Endpoint is an endpoint as a comparable value: equal endpoints are ==.
type Endpoint struct {
	Identity

	PodUID types.UID
	// Node and Zone are empty when not known.
	Node, Zone string

	Ready, Serving, Terminating bool

	// HintZone and HintNode are the zone and the node the endpoint is meant for;
	// empty for no hint.
	HintZone, HintNode string
}

// Object renders the endpoint for the API.
func (e Endpoint) Object() discoveryv1.Endpoint {
	// The API's type has pointers to all of these. One small object holds what they
	// point to, where pointers into e would keep all of e alive for as long.
	kept := &struct {
		node, zone                  string
		ready, serving, terminating bool
	}{e.Node, e.Zone, e.Ready, e.Serving, e.Terminating}
	object := discoveryv1.Endpoint{
		Addresses: strings.Split(e.Addresses, ","),
		Conditions: discoveryv1.EndpointConditions{
			Ready:       &kept.ready,
			Serving:     &kept.serving,
			Terminating: &kept.terminating,
		},
		TargetRef: &corev1.ObjectReference{
			Kind:      "Pod",
			Namespace: e.PodNamespace,
			Name:      e.PodName,
			UID:       e.PodUID,
		},
	}
	if e.Node != "" {
		object.NodeName = &kept.node
	}
	if e.Zone != "" {
		object.Zone = &kept.zone
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

// Observe reads an endpoint back from the API. It is exact when rendering the
// result gives the object again, except for the resourceVersion of the target,
// which upstream once wrote and which means nothing. An inexact endpoint was
// written by somebody else: its identity still holds, its content does not.
func Observe(object *discoveryv1.Endpoint) (endpoint Endpoint, exact bool) {
	exact = len(object.DeprecatedTopology) == 0
	endpoint.HintZone, endpoint.HintNode, exact = hinted(object.Hints, exact)
	endpoint.Addresses = joined(object.Addresses)
	endpoint.Hostname, exact = optional(object.Hostname, exact)
	endpoint.Node, exact = optional(object.NodeName, exact)
	endpoint.Zone, exact = optional(object.Zone, exact)
	endpoint.Ready, exact = required(object.Conditions.Ready, exact)
	endpoint.Serving, exact = required(object.Conditions.Serving, exact)
	endpoint.Terminating, exact = required(object.Conditions.Terminating, exact)
	if target := object.TargetRef; target != nil {
		endpoint.PodNamespace, endpoint.PodName, endpoint.PodUID = target.Namespace, target.Name, target.UID
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

// hinted reads hints: of each kind one or none, and not just the empty frame of them.
func hinted(hints *discoveryv1.EndpointHints, exact bool) (zone, node string, still bool) {
	if hints == nil {
		return "", "", exact
	}
	if len(hints.ForZones) > 0 {
		zone = hints.ForZones[0].Name
	}
	if len(hints.ForNodes) > 0 {
		node = hints.ForNodes[0].Name
	}
	plain := len(hints.ForZones) <= 1 && len(hints.ForNodes) <= 1 &&
		len(hints.ForZones)+len(hints.ForNodes) > 0 &&
		(zone != "") == (len(hints.ForZones) == 1) && (node != "") == (len(hints.ForNodes) == 1)
	return zone, node, exact && plain
}

// optional reads a text that Object leaves out when it is empty.
func optional(value *string, exact bool) (string, bool) {
	if value == nil {
		return "", exact
	}
	return *value, exact && *value != ""
}

// required reads a flag that Object always writes.
func required(value *bool, exact bool) (bool, bool) {
	if value == nil {
		return false, false
	}
	return *value, exact
}
