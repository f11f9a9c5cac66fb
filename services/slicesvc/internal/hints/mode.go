package hints

import (
	corev1 "k8s.io/api/core/v1"
)

// Mode is how a Service wants its traffic kept near.
type Mode uint8

// The modes.
const (
	// Off: endpoints carry no hints.
	Off Mode = iota
	// Auto: the topology annotation asks for hints in proportion to the zones' CPU.
	Auto
	// SameZone: every ready endpoint is meant for its own zone.
	SameZone
	// SameNode: every ready endpoint is meant for its own node and zone.
	SameNode
)

// ModeOf gives the mode of a Service.
func ModeOf(service *corev1.Service) Mode {
	if annotated(service) {
		return Auto
	}
	switch distribution(service) {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
		return SameZone
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return SameNode
	default:
		return Off
	}
}

// Text names the mode of a Service as its author did: "Auto", "PreferClose",
// "PreferSameZone" or "PreferSameNode"; empty for no hints.
func Text(service *corev1.Service) string {
	switch ModeOf(service) {
	case Auto:
		return "Auto"
	case SameZone, SameNode:
		return distribution(service)
	default:
		return ""
	}
}

// annotated reports whether the topology annotation asks for hints. The older
// key wins even when the newer one says otherwise, as upstream has it.
func annotated(service *corev1.Service) bool {
	value, ok := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		value = service.Annotations[corev1.AnnotationTopologyMode]
	}
	return value == "Auto" || value == "auto"
}

func distribution(service *corev1.Service) string {
	if service.Spec.TrafficDistribution == nil {
		return ""
	}
	return *service.Spec.TrafficDistribution
}

// Near gives the zone and the node a ready endpoint is meant for, empty for no
// hint. For Off and Auto both are empty: Auto cannot be told from one endpoint.
// An endpoint that is not ready has no hint.
func (m Mode) Near(zone, node string) (forZone, forNode string) {
	switch m {
	case SameZone:
		return zone, ""
	case SameNode:
		return zone, node
	default:
		return "", ""
	}
}
