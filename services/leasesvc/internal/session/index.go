package session

import "hash/maphash"

// segments is the number of parts of an index. Each part grows by itself, so no single growth
// blocks for long.
const segments = 256

// index finds slots by key. It stores four bytes for each cell and no keys: the keys are in the
// records.
type index struct {
	seed  maphash.Seed
	parts [segments]segment
	size  int
}

// segment is a hash table with linear probing, at most three quarters full. A cell is a slot plus
// one, or 0 if empty.
type segment struct {
	cells []uint32
	used  int
}

// keyAt returns the key of a slot that the index holds.
type keyAt func(slot uint32) Key

func newIndex() *index { return &index{seed: maphash.MakeSeed()} }

func (x *index) hash(key Key) uint64 {
	// The class selects another segment and another place in it.
	return maphash.String(x.seed, key.Name) ^ uint64(key.Class+1)*0x9E3779B97F4A7C15
}

func (x *index) find(key Key, at keyAt) (slot uint32, found bool) {
	hash := x.hash(key)
	s := &x.parts[hash%segments]
	if len(s.cells) == 0 {
		return 0, false
	}
	for i := s.home(hash); s.cells[i] != 0; i = s.next(i) {
		if slot := s.cells[i] - 1; at(slot) == key {
			return slot, true
		}
	}
	return 0, false
}

// insert adds a key that the index does not have. at must know its slot already.
func (x *index) insert(key Key, slot uint32, at keyAt) {
	hash := x.hash(key)
	s := &x.parts[hash%segments]
	if 4*(s.used+1) > 3*len(s.cells) {
		x.grow(s, at)
	}
	s.put(hash, slot)
	s.used++
	x.size++
}

func (x *index) grow(s *segment, at keyAt) {
	old := s.cells
	s.cells = make([]uint32, max(8, 2*len(old)))
	for _, cell := range old {
		if cell != 0 {
			s.put(x.hash(at(cell-1)), cell-1)
		}
	}
}

// remove removes a key that the index has. at must still know its slot.
func (x *index) remove(key Key, at keyAt) {
	hash := x.hash(key)
	s := &x.parts[hash%segments]
	hole := s.home(hash)
	for at(s.cells[hole]-1) != key {
		hole = s.next(hole)
	}
	// Slots that were put behind the hole by probing move up, because a search stops at the first
	// empty cell.
	for i := s.next(hole); s.cells[i] != 0; i = s.next(i) {
		home := s.home(x.hash(at(s.cells[i] - 1)))
		if s.distance(home, i) >= s.distance(hole, i) {
			s.cells[hole] = s.cells[i]
			hole = i
		}
	}
	s.cells[hole] = 0
	s.used--
	x.size--
}

func (s *segment) put(hash uint64, slot uint32) {
	i := s.home(hash)
	for s.cells[i] != 0 {
		i = s.next(i)
	}
	s.cells[i] = slot + 1
}

// home uses other bits of the hash than the choice of the segment. The number of cells is a power
// of two.
func (s *segment) home(hash uint64) int  { return int(hash>>8) & (len(s.cells) - 1) }
func (s *segment) next(i int) int        { return (i + 1) & (len(s.cells) - 1) }
func (s *segment) distance(a, b int) int { return (b - a) & (len(s.cells) - 1) }
