package slab_test

import (
	"testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

func TestColumn_ValuesStayWhereTheyAre(t *testing.T) {
	var c slab.Slab[int]
	c.Extend(1)
	first := c.At(0)
	*first = 7
	c.Extend(3 * slab.BlockSize)
	*c.At(3*slab.BlockSize - 1) = 9
	c.Extend(2)
	if got := c.At(0); got != first || *got != 7 {
		t.Errorf("the first value moved to %p with %d", got, *got)
	}
	if c.Len() != 3*slab.BlockSize || *c.At(3*slab.BlockSize - 1) != 9 {
		t.Errorf("length %d, last value %d", c.Len(), *c.At(3*slab.BlockSize - 1))
	}
}
