package slicecontroller

import (
	"errors"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// errLost is wrapped if kube-apiserver stored a slice under another managed-by label or for another
// Service, so that it is not found again. A new slice is deleted then: otherwise each sync would
// create one more. An existing slice belongs to the writer that its label names, as after a change
// of the label by another writer.
var errLost = fmt.Errorf("the slice is not found again by its labels: %w", kube.ErrStoredOtherwise)

// isLost returns whether a slice was stored with labels by which it is not found again.
func isLost(written, stored *discoveryv1.EndpointSlice) bool { return lostLabel(written, stored) != "" }

func lostLabel(written, stored *discoveryv1.EndpointSlice) string {
	for _, label := range []string{discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName} {
		if written.Labels[label] != stored.Labels[label] {
			return label
		}
	}
	return ""
}

func lostError(change pack.Change, stored *discoveryv1.EndpointSlice) error {
	label := lostLabel(change.Slice, stored)
	return fmt.Errorf("%s endpointslice %s/%s: its label %s is %q: %w", change.Verb, stored.Namespace, stored.Name, label, stored.Labels[label], errLost)
}

// deleteLost deletes a slice that this replica created and that is not found again. Its UID tells
// that it is this one, whatever another writer has changed since. A slice that cannot be deleted is
// tried again by the next sync.
func (a *planApplier) deleteLost(slice *discoveryv1.EndpointSlice) {
	anyVersion := *slice
	anyVersion.ResourceVersion = ""
	_, err := a.tracedWrite(pack.Change{Verb: planned.Delete, Slice: &anyVersion, From: slice})
	if err == nil || errors.Is(err, kube.ErrConflict) { // another slice has the name
		return
	}
	a.logger.Debug("cannot delete a slice that was stored under other labels", "service", a.key.String(), "error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.lost = append(a.result.lost, slice)
}

// lostRemains returns an error while a lost slice is not deleted: then no other one is created.
func (a *planApplier) lostRemains() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.result.lost) == 0 {
		return nil
	}
	lost := a.result.lost[0]
	return fmt.Errorf("no slice is created before endpointslice %s/%s is deleted: %w", lost.Namespace, lost.Name, errLost)
}
