// Package slab keeps one value for every slot of a table.
//
// Promise: a value never moves, so a growing column copies nothing and its pointers stay good. Growth costs one block at a
// time, and never twice the memory.
//
// A Column belongs to one goroutine. It knows nothing of what it keeps.
package slab

// Block is how many values are allocated together.
const BlockSize = 1024

// Column is a list of values that only grows. The zero Column is empty.
type Slab[T any] struct {
	blocks []*[BlockSize]T
	length int
}

// Len is how many values there are.
func (c *Slab[T]) Len() int { return c.length }

// At returns the value of a slot, which must be below Len.
func (c *Slab[T]) At(slot uint32) *T { return &c.blocks[slot/BlockSize][slot%BlockSize] }

// Extend adds zero values until there are n at least.
func (c *Slab[T]) Extend(n int) {
	for len(c.blocks)*BlockSize < n {
		c.blocks = append(c.blocks, new([BlockSize]T))
	}
	c.length = max(c.length, n)
}

// Blocks are all values in their order, the last block filled up with zero values. The list must not be changed; a longer one
// follows each Extend that added a block.
func (c *Slab[T]) Blocks() []*[BlockSize]T { return c.blocks }
