package hints

import (
	corev1 "k8s.io/api/core/v1"
)

// Mode is how a Service wants its traffic kept near.
type Mode uint8

const (
	// Off: endpoints have no hints.
	Off Mode = iota
	// Auto: the topology annotation asks for hints in proportion to the zones' CPU.
	Auto
	// SameZone: every ready endpoint is meant for its own zone.
	SameZone
	// SameNode: every ready endpoint is meant for its own node and zone.
	SameNode
)

// ModeOf returns the mode of a Service.
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

// ModeName returns the mode as the Service's manifest names it: "Auto", "PreferClose",
// "PreferSameZone" or "PreferSameNode"; empty for no hints.
func ModeName(service *corev1.Service) string {
	switch ModeOf(service) {
	case Auto:
		return "Auto"
	case SameZone, SameNode:
		return distribution(service)
	default:
		return ""
	}
}

// annotated reports whether the topology annotation asks for hints. As upstream has it, the
// deprecated key precedes the current one whatever its value is.
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

// Near returns the zone and the Node that a ready endpoint is meant for; empty for no hint. Both
// are empty for Off, and for Auto, whose hints depend on all endpoints.
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
