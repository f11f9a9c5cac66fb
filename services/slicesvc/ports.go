package slicesvc

import (
	"context"

	"github.com/trivet-dev/trivet/internal/term"
)

// Leadership decides when this replica may write.
//
// Run blocks until ctx ends and calls body once for each term held, those of
// several shards at the same time, with a context that carries the term and ends
// before the term can be anybody else's; it returns after every body has, and
// gives no shard to anybody else before its body has returned. Status does not
// block, has an entry for every shard, ordered by number, and may be called at any
// time, from any goroutine.
type Leadership interface {
	Run(ctx context.Context, body term.Body) error
	Status() term.Status
}
