// Package termtest provides terms and candidates for tests without an etcd.
//
// Its terms behave like those of a [term.Candidate]. Only their lease is artificial: it lasts an
// hour.
package termtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

// ErrEnded is the cause of terms that the test ends.
var ErrEnded = errors.New("the test ended the term")

const (
	leaseTTL    = time.Hour
	leaseMargin = time.Second
)

// NewTerm returns a term, a context that carries it, and a function that ends both. Call the
// function at the end of the test.
func NewTerm(shard int, epoch int64) (*term.Term, context.Context, func()) {
	lease := localterm.NewLease(context.Background(), time.Now(), leaseTTL, leaseMargin)
	t, _ := localterm.Begin(lease, localterm.Claim{Shard: shard, Epoch: epoch, Key: key(shard)})
	return t, t.Context(), func() { lease.End(ErrEnded) }
}

func key(shard int) string {
	return fmt.Sprintf("%sterms/termtest/%d", etcdconn.KeyPrefix("termtest"), shard)
}
