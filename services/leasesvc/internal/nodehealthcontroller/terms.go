package nodehealthcontroller

import (
	"context"
	"errors"
	"fmt"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// errTermOver says that a write was not begun, because a term it needs had ended.
var errTermOver = errors.New("the term has ended")

// follow takes in which terms are held here since the last pass. It is asked before anything else of a pass, so that all of it
// is decided for the same terms.
func (w *watch) follow() {
	select {
	case <-w.turnover:
	default:
		return
	}
	w.turnover = w.HeldShards.Changed() // before the board is read, so that no change is missed
	changed := false
	for number := range w.held {
		held, _ := w.HeldShards.Get(number)
		if w.held[number] == held {
			continue
		}
		w.held[number], changed = held, true
		w.charges[number] = nodehealth.Ownership{Shard: number, Held: held != nil, HeldSince: w.now.Instant}
	}
	if !changed {
		return
	}
	for i := range w.subjects {
		s := &w.subjects[i]
		s.Ownership = w.charges[s.Ownership.Shard]
	}
	w.Logger.Debug("the shards that are held here changed", "zones", w.held[ZoneShard] != nil)
}

// needed are the terms that a step is made under, or none if one of them has ended.
func (w *watch) needed(step *nodehealth.Step) []*heldshards.Shard {
	var terms []*heldshards.Shard
	if step.NeedsShard {
		terms = append(terms, w.held[step.Shard])
	}
	if step.NeedsZones && (!step.NeedsShard || step.Shard != ZoneShard) {
		terms = append(terms, w.held[ZoneShard])
	}
	return terms
}

// under has write done with a context that carries the first of the terms, and ends with ctx and with each of them. All of them
// wait for it to return before they are given up. Without terms, ctx will do.
func under(ctx context.Context, terms []*heldshards.Shard, write func(context.Context) error) error {
	bounds := []context.Context{ctx}
	for _, term := range terms {
		of, end, ok := term.BeginWrite()
		if !ok {
			return errTermOver
		}
		defer end()
		bounds = append(bounds, of)
	}
	if len(terms) == 0 {
		return write(ctx)
	}
	held, cancel := context.WithCancel(bounds[1])
	defer cancel()
	for _, bound := range bounds {
		defer context.AfterFunc(bound, cancel)()
	}
	err := write(held)
	switch {
	case err == nil || held.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return fmt.Errorf("%w: %w", errTermOver, err)
}
