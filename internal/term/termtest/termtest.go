// Package termtest gives tests terms and candidates without an etcd.
//
// Its terms are real ones: they check, remain and end as those of a [term.Candidate] do. Only the lease behind them is made
// up: it lasts an hour.
package termtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

// ErrEnded is the cause with which a term ends when its test says so.
var ErrEnded = errors.New("the test ended the term")

const (
	tenureTTL    = time.Hour
	tenureMargin = time.Second
)

// NewTerm begins a term that nobody claimed. The context carries it; end ends both, and must be called in the end.
func NewTerm(shard int, epoch int64) (*term.Term, context.Context, func()) {
	lease := localterm.NewLease(context.Background(), time.Now(), tenureTTL, tenureMargin)
	t, _ := localterm.Begin(lease, localterm.Claim{Shard: shard, Epoch: epoch, Key: key(shard)})
	return t, t.Context(), func() { lease.End(ErrEnded) }
}

func key(shard int) string { return fmt.Sprintf("%sterms/termtest/%d", term.Prefix("termtest"), shard) }
