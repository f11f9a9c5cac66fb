package slab_test

import (
	"testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

func TestSlab_ValuesDoNotMove(t *testing.T) {
	var s slab.Slab[int]
	s.Extend(1)
	first := s.At(0)
	*first = 7
	s.Extend(3 * slab.BlockSize)
	*s.At(3*slab.BlockSize - 1) = 9
	s.Extend(2)
	if got := s.At(0); got != first || *got != 7 {
		t.Errorf("the first value moved to %p with %d", got, *got)
	}
	if s.Len() != 3*slab.BlockSize || *s.At(3*slab.BlockSize - 1) != 9 {
		t.Errorf("length %d, last value %d", s.Len(), *s.At(3*slab.BlockSize - 1))
	}
}
