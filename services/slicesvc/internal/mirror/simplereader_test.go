package mirror_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/slicereader"
)

// readersWorld is the history of one Endpoints object whose slices simple readers follow.
type readersWorld struct {
	t         *rapid.T
	store     *cluster
	endpoints *corev1.Endpoints
	limits    mirror.Limits

	alone, inBatches *slicereader.Reader
	batch            []slicereader.Event
}

// step changes the Endpoints object, or what other writers may change of its slices.
func (w *readersWorld) step() {
	existing := w.store.list()
	switch rapid.IntRange(0, 5).Draw(w.t, "step") {
	case 0:
		if len(existing) > 0 {
			w.remove(rapid.SampledFrom(existing).Draw(w.t, "deleted slice"))
		}
	case 1:
		if len(existing) > 0 {
			held := edited(rapid.SampledFrom(existing).Draw(w.t, "held slice"), deleted)
			w.store.slices[held.Name] = held
			w.show(slicereader.Event{Slice: held})
		}
	default:
		w.endpoints, w.limits = drawEndpoints(w.t, "next"), drawLimits(w.t, "next")
	}
}

func (w *readersWorld) remove(slice *discoveryv1.EndpointSlice) {
	delete(w.store.slices, slice.Name)
	w.show(slicereader.Event{Slice: slice, Deleted: true})
}

func (w *readersWorld) show(event slicereader.Event) {
	w.alone.Apply(event)
	if w.batch = append(w.batch, event); rapid.Bool().Draw(w.t, "batch ends") {
		w.endBatch()
	}
}

func (w *readersWorld) endBatch() {
	w.inBatches.Apply(w.batch...)
	w.batch = nil
}

// write makes the first writes of a plan in an order in which the controller may make them.
func (w *readersWorld) write(plan pack.Plan, most int) {
	for _, change := range slicetest.DrawWrites(w.t, plan, most) {
		w.store.write(w.t, change)
		w.show(slicereader.Event{Slice: change.Slice, Deleted: change.Verb == planned.Delete})
	}
}

func (w *readersWorld) input() pack.Input { return input(w.endpoints, w.limits, w.store.list()) }

// settle brings everything in order, and checks that no reader misses a ready endpoint.
func (w *readersWorld) settle() {
	w.write(pack.Make(w.input()), 1000)
	w.endBatch()
	for _, slice := range w.store.list() {
		if slice.DeletionTimestamp != nil {
			w.remove(slice)
		}
	}
	w.endBatch()
	w.write(pack.Repeat(w.input(), 1000), 1000)
	w.endBatch()
	if plan := pack.Make(w.input()); !plan.Empty() {
		w.t.Fatalf("there is still something to do: %v", verbs(plan))
	}
	for _, slice := range w.store.list() {
		if pack.TookEndpointsLately(slice) {
			w.t.Fatalf("slice %s is to be written again, for ever", slice.Name)
		}
	}
	for name, reader := range map[string]*slicereader.Reader{"alone": w.alone, "in batches": w.inBatches} {
		if missing := reader.Missing(); len(missing) > 0 {
			w.t.Fatalf("the reader of events %s lacks the ready endpoints %q", name, missing)
		}
	}
}

// No plan of a mirror loses a ready endpoint for a reader that looks at each slice alone, whatever
// happens to addresses, ports and limits, also if a term ends in the middle of a plan.
func TestMake_SimpleReadersOfMirrorsLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &readersWorld{
			t: t, store: newCluster(), endpoints: drawEndpoints(t, "first"), limits: drawLimits(t, "first"),
			alone: slicereader.New(slicereader.ByPort), inBatches: slicereader.New(slicereader.ByPort),
		}
		w.settle()
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			w.step()
			if rapid.IntRange(0, 3).Draw(t, "interrupted") == 0 {
				w.write(pack.Make(w.input()), rapid.IntRange(0, 3).Draw(t, "writes"))
				w.step()
			}
			w.settle()
		}
	})
}
