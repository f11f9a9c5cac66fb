package slicesvc

import (
	"context"

	"github.com/trivet-dev/trivet/internal/term"
)

// Leadership decides when this replica may write.
//
// Run blocks until ctx ends and calls body once for each term held, with a
// context that carries the term and ends before the term can be anybody else's;
// it returns after every body has. Status does not block and may be called at any
// time, from any goroutine.
type Leadership interface {
	Run(ctx context.Context, body term.Body) error
	Status() term.Status
}
