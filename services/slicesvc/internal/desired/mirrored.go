package desired

import (
	"encoding/binary"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Target is the target of an endpoint without its namespace and name, as a comparable value. That
// of a Pod is its UID, or in a mirrored endpoint, if it has more fields, an encoding that begins
// with encodedTarget.
type Target string

const (
	encodedTarget = "\x00"
	// NoTarget is the Target of a mirrored endpoint without a target.
	NoTarget Target = encodedTarget
)

// TargetOf returns the target of a mirrored endpoint, which may be nil.
func TargetOf(reference *corev1.ObjectReference) Target {
	if reference == nil {
		return NoTarget
	}
	others := []string{reference.Kind, reference.APIVersion, reference.FieldPath, reference.ResourceVersion}
	if others[0] == "Pod" && others[1]+others[2]+others[3] == "" && !strings.HasPrefix(string(reference.UID), encodedTarget) {
		return Target(reference.UID)
	}
	encoded := []byte(encodedTarget)
	for _, part := range others {
		encoded = append(binary.AppendUvarint(encoded, uint64(len(part))), part...)
	}
	return Target(append(encoded, reference.UID...))
}

// reference returns the target in the API's type, nil for NoTarget.
func (t Target) reference(namespace, name string) *corev1.ObjectReference {
	rest, encoded := strings.CutPrefix(string(t), encodedTarget)
	reference := &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(t)}
	switch {
	case !encoded:
		return reference
	case rest == "":
		return nil
	}
	for _, part := range []*string{&reference.Kind, &reference.APIVersion, &reference.FieldPath, &reference.ResourceVersion} {
		length, size := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
		rest = rest[size:]
		*part, rest = rest[:length], rest[length:]
	}
	reference.UID = types.UID(rest)
	return reference
}

// unversioned returns the target without its resourceVersion.
func (t Target) unversioned() Target {
	if t == NoTarget || !strings.HasPrefix(string(t), encodedTarget) {
		return t
	}
	reference := t.reference("", "")
	reference.ResourceVersion = ""
	return TargetOf(reference)
}

// SameMirrored reports whether a slice that has the mirrored endpoint found needs no write for e.
// As upstream has it, hints and the resourceVersion of the target do not count.
func (e Endpoint) SameMirrored(found Endpoint) bool {
	found.HintZone, found.HintNode = e.HintZone, e.HintNode
	if e.Target != found.Target && found.Mirrored {
		e.Target, found.Target = e.Target.unversioned(), found.Target.unversioned()
	}
	return e == found
}

func (e Endpoint) mirroredObject() discoveryv1.Endpoint {
	values := &struct {
		node, hostname string
		ready          bool
	}{e.Node, e.Hostname, e.Ready}
	object := discoveryv1.Endpoint{
		Addresses:  strings.Split(e.Addresses, ","),
		Conditions: discoveryv1.EndpointConditions{Ready: &values.ready},
		TargetRef:  e.Target.reference(e.PodNamespace, e.PodName),
	}
	if e.Node != "" {
		object.NodeName = &values.node
	}
	if e.Hostname != "" {
		object.Hostname = &values.hostname
	}
	return object
}

// readMirrored completes the fields that FromObject has read of a mirrored endpoint.
func (e Endpoint) readMirrored(object *discoveryv1.Endpoint) (endpoint Endpoint, exact bool) {
	e.Mirrored, e.Target = true, TargetOf(object.TargetRef)
	if object.TargetRef != nil {
		e.PodNamespace, e.PodName = object.TargetRef.Namespace, object.TargetRef.Name
	}
	return e, object.Zone == nil && (object.NodeName == nil || e.Node != "") && (object.Hostname == nil || e.Hostname != "")
}
