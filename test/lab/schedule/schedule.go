// Package schedule draws faults from a seed, for all tests with random faults. What a fault is, and
// which faults go together, is the test's.
package schedule

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Drawing draws rows of a table without putting them back. When none remains, it begins anew with
// all rows in another order. Equal seeds and calls draw the same.
type Drawing[T any] struct {
	rows, remaining []T
	*rand.Rand
}

// New returns a drawing of the rows, which it does not change.
func New[T any](seed uint64, rows []T) *Drawing[T] {
	return &Drawing[T]{rows: rows, Rand: rand.New(rand.NewPCG(seed, 0))}
}

// Refill puts all rows back, in a new order, if none remains.
func (d *Drawing[T]) Refill() {
	if len(d.remaining) == 0 {
		d.remaining = slices.Clone(d.rows)
		d.Shuffle(len(d.remaining), func(i, j int) { d.remaining[i], d.remaining[j] = d.remaining[j], d.remaining[i] })
	}
}

// Next draws the first remaining row that is allowed; a nil function allows each. It reports false
// if there is none.
func (d *Drawing[T]) Next(allowed func(T) bool) (row T, found bool) {
	i := 0
	if allowed != nil {
		i = slices.IndexFunc(d.remaining, allowed)
	}
	if i < 0 || i >= len(d.remaining) {
		return row, false
	}
	row = d.remaining[i]
	d.remaining = slices.Delete(d.remaining, i, i+1)
	return row, true
}

// Between returns a multiple of unit, which is easy to read.
func (d *Drawing[T]) Between(least, most, unit time.Duration) time.Duration {
	return (least + time.Duration(d.Int64N(int64(most-least)+1))).Round(unit)
}
