// Package slab stores values by slot number: a Slab keeps one value for each slot, a Wheel keeps
// the slots that wait for a deadline.
//
// Promise: values never move in memory. A Slab grows by one block at a time and copies nothing, so
// pointers into it stay valid. A Wheel costs 8 bytes for each slot and no timer; filing and
// removing a slot take constant time.
//
// Both belong to one goroutine. The package reads no clock.
package slab

// BlockSize is the number of values that are allocated together.
const BlockSize = 1024

// Slab is a list of values that only grows. The zero Slab is empty.
type Slab[T any] struct {
	blocks []*[BlockSize]T
	length int
}

// Len returns the number of values.
func (s *Slab[T]) Len() int { return s.length }

// At returns the value of a slot, which must be below Len.
func (s *Slab[T]) At(slot uint32) *T { return &s.blocks[slot/BlockSize][slot%BlockSize] }

// Extend adds zero values until Len is at least n.
func (s *Slab[T]) Extend(n int) {
	for len(s.blocks)*BlockSize < n {
		s.blocks = append(s.blocks, new([BlockSize]T))
	}
	s.length = max(s.length, n)
}

// Blocks returns all values in order; the last block is filled up with zero values. The caller must
// not change the list. After an Extend that adds a block, Blocks returns a longer list.
func (s *Slab[T]) Blocks() []*[BlockSize]T { return s.blocks }
