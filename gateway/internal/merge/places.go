package merge

import "math/bits"

// wordSize is how many places one word of a set holds.
const wordSize = 64

// places is a set of small numbers.
type places []uint64

func (p *places) set(place int) {
	for len(*p) <= place/wordSize {
		*p = append(*p, 0)
	}
	(*p)[place/wordSize] |= 1 << (place % wordSize)
}

func (p places) unset(place int) {
	if place/wordSize < len(p) {
		p[place/wordSize] &^= 1 << (place % wordSize)
	}
}

func (p places) has(place int) bool {
	return place/wordSize < len(p) && p[place/wordSize]&(1<<(place%wordSize)) != 0
}

// next returns the first number from place on that is in the set, or -1.
func (p places) next(place int) int {
	word := place / wordSize
	if word >= len(p) {
		return -1
	}
	rest := p[word] >> (place % wordSize) << (place % wordSize)
	for {
		if rest != 0 {
			return word*wordSize + bits.TrailingZeros64(rest)
		}
		if word++; word >= len(p) {
			return -1
		}
		rest = p[word]
	}
}
