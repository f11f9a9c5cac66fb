package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// kindRanges is the kind of the bitmaps in etcd, beside the kinds of objects.
const kindRanges Kind = "ranges"

// kindIdentity is what tells whether the bitmaps belong to this cluster. It is read, not watched.
const kindIdentity Kind = "the owner of the ranges"

// watches is the state of all watches.
type watches struct {
	running sync.WaitGroup
	// kinds are the kinds of objects to watch.
	kinds []Kind
	// unlisted are the kinds that have not been listed yet. failing has the errors of watches that
	// fail now.
	unlisted map[Kind]struct{}
	failing  map[Kind]error
	heard    *heardKinds
	// changes has the events. The goroutine of Run calls them.
	changes chan func()
}

func newWatches(stores []allocation.Store) *watches {
	w := &watches{
		kinds: []Kind{KindServices}, unlisted: map[Kind]struct{}{kindRanges: {}, kindIdentity: {}}, failing: map[Kind]error{}, changes: make(chan func()),
	}
	if slices.Contains(stores, allocation.IPAddresses) {
		w.kinds = append(w.kinds, KindIPAddresses, KindServiceCIDRs)
	}
	for _, kind := range w.kinds {
		w.unlisted[kind] = struct{}{}
	}
	w.heard = newHeardKinds(w.kinds)
	return w
}

// err returns why the caches may be outdated now, nil if every watch works.
func (w *watches) err() error {
	var problems []error
	for _, kind := range slices.Sorted(maps.Keys(w.failing)) {
		problems = append(problems, w.failing[kind])
	}
	for _, kind := range slices.Sorted(maps.Keys(w.unlisted)) {
		if w.failing[kind] == nil {
			problems = append(problems, fmt.Errorf("%s: not read yet", kind))
		}
	}
	if len(w.unlisted) > 0 {
		return fmt.Errorf("%w: %w", ErrNotSynced, errors.Join(problems...))
	}
	return errors.Join(problems...)
}

// listErr is err, but nil once every watch has listed its objects.
func (w *watches) listErr() error {
	if len(w.unlisted) == 0 {
		return nil
	}
	return w.err()
}

func (w *watches) setErr(kind Kind, err error) {
	if err == nil {
		delete(w.failing, kind)
		return
	}
	w.failing[kind] = err
}

func (r *reconciler) startWatches() {
	r.watches.running.Go(func() { r.Cluster.Watch(r.ctx, r.watches.kinds, &objectHandler{r}) })
	r.watches.running.Go(func() { r.Ranges.Watch(r.ctx, &rangeHandler{r}) })
}

func (r *reconciler) send(change func()) {
	select {
	case r.watches.changes <- change:
	case <-r.ctx.Done():
	}
}

// objectHandler passes watch events of objects to the goroutine of Run.
type objectHandler struct{ *reconciler }

func (h *objectHandler) OnChange(change ObjectChange) {
	h.send(func() { h.updateIndex(change) })
}

func (h *objectHandler) OnError(kind Kind, err error) {
	h.send(func() { h.watches.setErr(kind, err) })
}

func (h *objectHandler) OnHeard(kind Kind, version string) {
	h.watches.heard.set(kind, version, time.Now())
}

// rangeHandler passes watch events of ranges to the goroutine of Run.
type rangeHandler struct{ *reconciler }

func (h *rangeHandler) OnList(values map[rangestore.Name]rangestore.Value) {
	h.send(func() {
		for _, name := range rangestore.Names() {
			h.putRange(name, values[name])
		}
		h.listed(kindRanges)
	})
}

func (h *rangeHandler) OnChange(name rangestore.Name, value rangestore.Value) {
	h.send(func() { h.putRange(name, value) })
}

func (h *rangeHandler) OnError(err error) {
	h.send(func() { h.watches.setErr(kindRanges, err) })
}

func (r *reconciler) updateIndex(change ObjectChange) {
	for _, service := range change.Put.Services {
		r.index.PutService(service)
	}
	for _, address := range change.Put.IPAddresses {
		r.index.PutIPAddress(address)
	}
	for _, cidr := range change.Put.ServiceCIDRs {
		r.index.PutCIDR(cidr)
	}
	for _, deleted := range change.Deleted {
		switch change.Kind {
		case KindServices:
			r.index.DeleteService(allocation.Key{Namespace: deleted.Namespace, Name: deleted.Name})
		case KindIPAddresses:
			r.index.DeleteIPAddress(deleted.Name)
		case KindServiceCIDRs:
			r.index.DeleteCIDR(deleted.Name)
		}
	}
	r.watches.heard.set(change.Kind, change.Version, time.Now())
	if change.List {
		r.listed(change.Kind)
	}
}

// listed records that a kind was listed. From the second list on, changes may have been missed.
func (r *reconciler) listed(kind Kind) {
	if _, isFirst := r.watches.unlisted[kind]; !isFirst {
		r.index.RecordGap()
	}
	delete(r.watches.unlisted, kind)
	delete(r.watches.failing, kind)
}

func (r *reconciler) putRange(name rangestore.Name, value rangestore.Value) {
	r.ranges.values[name] = value
	for _, store := range r.stores.Present {
		if store.IsBitmap() && RangeName(store) == name {
			r.index.PutBitmap(bitmapOf(store, value, r.ranges.problem))
		}
	}
}

// bitmapOf returns a range as the index takes it. If it is unverified, it has no content.
func bitmapOf(store allocation.Store, value rangestore.Value, unverified string) allocation.Bitmap {
	if unverified != "" {
		return allocation.Bitmap{Store: store, Revision: value.ModRevision, Unverified: unverified}
	}
	return allocation.Bitmap{
		Store: store, Range: value.Range.Text(), Data: value.Range.Data(), Revision: value.ModRevision,
		Missing: value.ModRevision == 0, Problem: value.Unreadable,
	}
}

// RangeName returns the name of the stored range of a store that is a bitmap.
func RangeName(store allocation.Store) rangestore.Name {
	switch store {
	case allocation.ClusterIPs:
		return rangestore.ClusterIPs
	case allocation.SecondaryClusterIPs:
		return rangestore.SecondaryClusterIPs
	default:
		return rangestore.NodePorts
	}
}

// verifyInterval is the time between two attempts to verify the ranges.
const verifyInterval = 5 * time.Second

const notVerified = "it has not been compared yet whether these are the ranges of this cluster"

// rangeIdentity says whether the watched ranges belong to this cluster. One etcd may hold several
// clusters. The ranges of another cluster must neither be compared with the Services of this one
// nor be written.
type rangeIdentity struct {
	// problem says why the ranges may belong to another cluster. Once empty, it stays empty for the
	// rest of the term.
	problem string
	checked time.Time
	// verifying reports that a worker verifies them.
	verifying bool
	// values are the watched ranges.
	values map[rangestore.Name]rangestore.Value
}

func newRangeIdentity() rangeIdentity {
	return rangeIdentity{problem: notVerified, values: map[rangestore.Name]rangestore.Value{}}
}

// verifyRanges makes a worker verify that the ranges belong to this cluster. After a success it
// does nothing.
func (r *reconciler) verifyRanges(now time.Time) {
	if r.ranges.problem == "" || r.ranges.verifying || !r.ranges.checked.IsZero() && now.Sub(r.ranges.checked) < verifyInterval {
		return
	}
	r.ranges.verifying = true
	r.spawn(func(ctx context.Context) func() {
		problem, err := r.Ranges.VerifyCluster(ctx, r.Cluster.Identity)
		return func() { r.verified(problem, err) }
	})
}

func (r *reconciler) verified(problem string, err error) {
	now := time.Now()
	r.ranges.verifying, r.ranges.checked = false, now
	r.requestPass(now)
	if err != nil {
		r.watches.setErr(kindIdentity, err)
		return
	}
	if problem != "" && problem != r.ranges.problem {
		r.Logger.Warn("cannot audit the ranges in etcd", "reason", problem)
	}
	r.ranges.problem = problem
	delete(r.watches.unlisted, kindIdentity)
	delete(r.watches.failing, kindIdentity)
	for _, name := range slices.Sorted(maps.Keys(r.ranges.values)) {
		r.putRange(name, r.ranges.values[name])
	}
}
