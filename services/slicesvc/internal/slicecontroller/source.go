package slicecontroller

import (
	"context"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Object is what the slices under a key are made from, at one moment. Equal values are the same
// version; a value must be comparable.
type Object interface {
	GetUID() types.UID
}

// Source is what a Syncer keeps slices of: which objects there are, and how the slices of each are
// planned. Its methods are called from several goroutines. Only Plan may block.
type Source interface {
	// Object returns what the slices under a key are made from. It fails with ErrServiceNotFound or
	// ErrUnmanaged if there is nothing to sync.
	Object(key Key) (Object, error)
	// ShardKeys returns the keys of a shard that may have something to sync.
	ShardKeys(shard int) []Key
	// Managed returns how many keys of some shards have slices.
	Managed(shards []int) int
	// Plan plans all slices under a key. Its object may be newer than the argument. The plan also
	// writes the slices that took endpoints once more, at most repeat of them.
	Plan(ctx context.Context, key Key, object Object, repeat int) (pack.Plan, error)
	// Fingerprint identifies a plan for an object.
	Fingerprint(object Object, plan pack.Plan) string
	// Finished is called after each sync that was not cut short by the end of a term.
	Finished(key Key, object Object, done FinishedSync)
	// TermBegan is called in each term of a shard, when its cache has the writes of the last
	// leader.
	TermBegan(shard int)
	// Changed is called after a change that State or the slices of a key may show.
	Changed(key Key)
	// AnnotationsEdited returns whether two versions of a slice differ in an annotation that a plan
	// sets.
	AnnotationsEdited(key Key, before, after *discoveryv1.EndpointSlice) bool
	// Contended is called when another writer keeps reverting the slices of an object.
	Contended(object Object, writer string)
}

// FinishedSync is how a sync went.
type FinishedSync struct {
	Plan pack.Plan
	// Outcomes has one Outcome for each change of the plan; nil if the plan was not applied.
	Outcomes []Outcome
	// Complete says that everything that was planned was written.
	Complete bool
	Err      error
	Took     time.Duration
}

// source is the part of a Syncer that depends on what owns the slices.
type source interface {
	object(key Key) (Object, error)
	shardKeys(shard int) []Key
	managed(shards []int) int
	// plan sets the plan of the result, and returns the placement that it was made from; nil for a
	// plan of all slices.
	plan(ctx context.Context, key Key, input *syncInput, result *syncResult) (*pack.Placement, error)
	fingerprint(object Object, plan pack.Plan) string
	// prepareNext sets what the next sync starts from, after a sync that wrote everything.
	prepareNext(key Key, input *syncInput, result *syncResult, placement *pack.Placement)
	finished(key Key, object Object, result *syncResult, took time.Duration)
	termBegan(shard int)
	changed(key Key)
	annotationsEdited(key Key, before, after *discoveryv1.EndpointSlice) bool
	contended(object Object, writer string)
}

// wholePlans makes a source of a Source. It always plans all slices, and compacts nothing.
type wholePlans struct{ Source }

var _ source = wholePlans{}

func (w wholePlans) object(key Key) (Object, error)         { return w.Object(key) }
func (w wholePlans) shardKeys(shard int) []Key              { return w.ShardKeys(shard) }
func (w wholePlans) managed(shards []int) int               { return w.Managed(shards) }
func (w wholePlans) termBegan(shard int)                    { w.TermBegan(shard) }
func (w wholePlans) changed(key Key)                        { w.Changed(key) }
func (w wholePlans) contended(object Object, writer string) { w.Contended(object, writer) }

func (w wholePlans) annotationsEdited(key Key, before, after *discoveryv1.EndpointSlice) bool {
	return w.AnnotationsEdited(key, before, after)
}

func (w wholePlans) fingerprint(object Object, plan pack.Plan) string {
	return w.Fingerprint(object, plan)
}

func (w wholePlans) plan(ctx context.Context, key Key, input *syncInput, result *syncResult) (placement *pack.Placement, err error) {
	repeat := 0
	if input.compacting || input.repeating {
		repeat = compactionWrites
	}
	result.plan, err = w.Plan(ctx, key, input.object, repeat)
	return nil, err
}

func (w wholePlans) prepareNext(Key, *syncInput, *syncResult, *pack.Placement) {}

func (w wholePlans) finished(key Key, object Object, result *syncResult, took time.Duration) {
	w.Finished(key, object, FinishedSync{
		Plan: result.plan, Outcomes: result.outcomes, Complete: result.complete(), Err: result.err, Took: took,
	})
}
