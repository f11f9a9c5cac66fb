package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// Types of conditions, and their reasons.
const (
	conditionAddressesDropped = "AddressesDropped"
	conditionContended        = "Contended"
	conditionCreationRefused  = "CreationRefused"
	conditionManaged          = "Managed"
	conditionSourcesOverlap   = "SourcesOverlap"
	conditionTopologyHints    = "TopologyHints"

	reasonAnotherWriter = "ANOTHER_WRITER"
	reasonSelector      = "SELECTOR"
	reasonMirrored      = "MIRRORED"
	reasonHinted        = "HINTED"
	reasonNotAllocated  = "NOT_ENOUGH_NODES_OR_ENDPOINTS"
	reasonNoZones       = "NO_ZONES"

	reasonNamespaceTerminating = "NAMESPACE_TERMINATING"
	reasonTooManyAddresses     = "TOO_MANY_ADDRESSES"
	reasonInvalidAddresses     = "INVALID_ADDRESSES"
	reasonSelectorRemoved      = "SELECTOR_REMOVED"
)

// conditions returns the conditions of a Service, ordered by type.
func conditions(state serviceState, of *slicev1.ServiceSlices) []*metav1.Condition {
	all := []*metav1.Condition{droppedCondition(state)}
	if of.GetOwner().GetEpoch() != 0 {
		all = append(all, contendedCondition(state), creationRefusedCondition(state))
	}
	all = append(all, managedCondition(state), overlapCondition(state), hintsCondition(state, of))
	return slices.DeleteFunc(all, func(condition *metav1.Condition) bool { return condition == nil })
}

// droppedCondition says which addresses of the Endpoints object are in no slice, and what to do.
func droppedCondition(state serviceState) *metav1.Condition {
	if state.droppedAddresses() == 0 {
		return nil
	}
	condition := &metav1.Condition{Type: conditionAddressesDropped, Status: metav1.Condition_STATUS_TRUE}
	var sentences []string
	if invalid := state.mirror.InvalidCount; invalid > 0 {
		condition.Reason = reasonInvalidAddresses
		sentences = append(sentences, fmt.Sprintf("%s of the Endpoints object %s invalid: %s. Correct what writes the object%s.",
			counted(invalid, "address", "addresses"), oneOrMany(invalid, "is", "are"), wording.Quoted(state.mirror.Invalid, invalid, maxQuoted), writerText(state.mirror.Writer)))
	}
	if tooMany := state.mirror.TooMany; tooMany > 0 {
		condition.Reason = reasonTooManyAddresses
		sentences = append(sentences, fmt.Sprintf("%s of the Endpoints object %s in no slice, because a subset may have %d. With --mirroring-spill, further slices hold them.",
			counted(tooMany, "address", "addresses"), oneOrMany(tooMany, "is", "are"), state.limits.PerSubset))
	}
	condition.Message = wording.Valid(strings.Join(sentences, " "))
	return condition
}

// contendedCondition names the writer that keeps reverting slices of either source.
func contendedCondition(state serviceState) *metav1.Condition {
	writer, since := state.ContendedBy, state.ContendedSince
	if writer == "" {
		writer, since = state.mirror.ContendedBy, state.mirror.ContendedSince
	}
	if writer == "" {
		return nil
	}
	return &metav1.Condition{
		Type:           conditionContended,
		Status:         metav1.Condition_STATUS_TRUE,
		Reason:         reasonAnotherWriter,
		Message:        wording.Valid(fmt.Sprintf("%q keeps reverting the slices. Changes of endpoints are still written; changes of labels, zones and hints wait up to a minute.", writer)),
		TransitionTime: prototime.New(since),
	}
}

func creationRefusedCondition(state serviceState) *metav1.Condition {
	since := state.CreationRefusedSince
	if since.IsZero() {
		since = state.mirror.CreationRefusedSince
	}
	if since.IsZero() {
		return nil
	}
	return &metav1.Condition{
		Type:           conditionCreationRefused,
		Status:         metav1.Condition_STATUS_TRUE,
		Reason:         reasonNamespaceTerminating,
		Message:        "The namespace is being deleted, so kube-apiserver refuses new slices. Endpoints that need one are in none.",
		TransitionTime: prototime.New(since),
	}
}

func managedCondition(state serviceState) *metav1.Condition {
	switch {
	case state.Unmanaged == "":
		return &metav1.Condition{
			Type: conditionManaged, Status: metav1.Condition_STATUS_TRUE, Reason: reasonSelector,
			Message: "The Service has a selector, so slicesvc writes its slices.",
		}
	case state.mirrored():
		message := "The Service has no selector, so slicesvc writes its slices from its Endpoints object" + writerText(state.mirror.Writer) + "."
		if len(state.mirror.Slices) == 0 && !hasAddress(state.mirror.Endpoints) {
			message += " The object has no address."
		}
		return &metav1.Condition{Type: conditionManaged, Status: metav1.Condition_STATUS_TRUE, Reason: reasonMirrored, Message: wording.Valid(message)}
	}
	reason, text := state.unmanaged()
	return &metav1.Condition{
		Type: conditionManaged, Status: metav1.Condition_STATUS_FALSE, Reason: reason,
		Message: fmt.Sprintf("slicesvc writes no slices: %s.", text),
	}
}

// unmanaged says why slicesvc writes no slices.
func (s *serviceState) unmanaged() (reason, text string) {
	switch {
	case s.mirrors && s.mirror.Reason == mirror.SkipMirrorLabel:
		return string(mirror.SkipMirrorLabel), fmt.Sprintf("its Endpoints object has the label %s=true, so another controller or a user writes its slices", discoveryv1.LabelSkipMirror)
	case s.mirrors && s.mirror.Reason == mirror.LeaderAnnotation:
		return string(mirror.LeaderAnnotation), fmt.Sprintf("its Endpoints object has the annotation %s, which makes it a lock of leader election", mirror.LeaderElectionAnnotation)
	case s.Unmanaged == index.ExternalName:
		return string(s.Unmanaged), "it is an ExternalName, which stands for a DNS name"
	case s.unknown != nil:
		return string(s.Unmanaged), "it has no selector, and the Endpoints are not read yet"
	case s.limits.PerSubset > 0:
		return string(mirror.NoEndpoints), "it has neither a selector nor an Endpoints object, so another controller or a user writes its slices"
	default:
		return string(s.Unmanaged), "it has no selector, so another controller or a user writes its slices"
	}
}

// overlapCondition reports slices of both sources.
func overlapCondition(state serviceState) *metav1.Condition {
	if len(state.Slices) == 0 || len(state.mirror.Slices) == 0 {
		return nil
	}
	condition := &metav1.Condition{Type: conditionSourcesOverlap, Status: metav1.Condition_STATUS_TRUE}
	if state.Unmanaged == "" {
		condition.Reason = string(mirror.HasSelector)
		condition.Message = fmt.Sprintf("The Service has a selector, and %s left of its Endpoints object. slicesvc deletes them.",
			counted(len(state.mirror.Slices), "mirrored slice is", "mirrored slices are"))
		return condition
	}
	condition.Reason = reasonSelectorRemoved
	condition.Message = fmt.Sprintf("The Service has lost its selector, and %s left of the Pods that it selected. Traffic goes to these Pods, too. "+
		"Delete what is left, or start slicesvc with --cleanup-selectorless.", counted(len(state.Slices), "slice is", "slices are"))
	return condition
}

// hintsCondition returns nil if no hints are asked for, or if there is no ready endpoint yet that
// could have one.
func hintsCondition(state serviceState, of *slicev1.ServiceSlices) *metav1.Condition {
	if state.Unmanaged != "" || state.Topology == "" {
		return nil
	}
	var hinted int32
	for _, slice := range of.GetSlices() {
		hinted += slice.GetHintedEndpointCount()
	}
	ready := of.GetReadyEndpointCount()
	condition := &metav1.Condition{Type: conditionTopologyHints, Status: metav1.Condition_STATUS_FALSE}
	switch {
	case state.TopologyProblem != "":
		condition.Reason = reasonNotAllocated
		condition.Message = wording.Valid(fmt.Sprintf("The Service asks for %s, and has no hints: %s.", state.Topology, state.TopologyProblem))
	case ready == 0:
		return nil
	case hinted >= ready:
		condition.Status, condition.Reason = metav1.Condition_STATUS_TRUE, reasonHinted
		condition.Message = fmt.Sprintf("The ready endpoints have hints because of %s.", state.Topology)
	default:
		condition.Reason = reasonNoZones
		condition.Message = fmt.Sprintf("The Service asks for %s, and %d of %d ready endpoints have no hint; kube-proxy uses hints only if each has one.",
			state.Topology, ready-hinted, ready)
	}
	return condition
}

func hasAddress(endpoints *corev1.Endpoints) bool {
	return endpoints != nil && slices.ContainsFunc(endpoints.Subsets, func(subset corev1.EndpointSubset) bool {
		return len(subset.Addresses)+len(subset.NotReadyAddresses) > 0
	})
}

// writerText names the writer of an Endpoints object as a relative clause; "" if it is not known.
func writerText(writer string) string {
	if writer == "" {
		return ""
	}
	return fmt.Sprintf(", which %q wrote last", writer)
}

func counted(count int, one, many string) string {
	return strconv.Itoa(count) + " " + oneOrMany(count, one, many)
}

func oneOrMany(count int, one, many string) string {
	if count == 1 {
		return one
	}
	return many
}

// maxQuoted bounds a text of an object in a sentence.
const maxQuoted = 64
