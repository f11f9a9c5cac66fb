package session

import (
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

// A pulse is one word that whoever hears a holder may write: the generation of the slot, whether the session is Alive, and
// when it was last heard. All three change in one step, so a beat counts for the life that it was meant for, or not at all.
//
//	63         40   39   38                              0
//	 generation    alive   milliseconds, biased, rounded up
const (
	beatBits       = 39
	beatMask       = 1<<beatBits - 1
	aliveBit       = 1 << beatBits
	generationBits = 64 - beatBits - 1
	// lastGeneration is that of a slot which has had all its lives. It is not used again, so no Ref ever names two lives.
	lastGeneration = 1<<generationBits - 1
	// beatBias lets instants before the origin be told: 4 years. There are 13 years after it.
	beatBias = 1 << 37
)

type heartbeat struct {
	word atomic.Uint64
	// sequence of the last beat, for people. A beat that is overtaken by the end of its life may leave its own here.
	sequence atomic.Uint64
}

func wordOf(generation uint32, alive bool, beat monotonic.Instant) uint64 {
	word := uint64(generation)<<(beatBits+1) | tick(beat)
	if alive {
		word |= aliveBit
	}
	return word
}

func generationIn(word uint64) uint32 { return uint32(word >> (beatBits + 1)) }

// beatIn is never before the beat was heard, and less than a millisecond after.
func beatIn(word uint64) monotonic.Instant {
	return monotonic.Instant((int64(word&beatMask) - beatBias) * int64(time.Millisecond))
}

func tick(i monotonic.Instant) uint64 {
	ticks := int64(i) / int64(time.Millisecond)
	if int64(i) > ticks*int64(time.Millisecond) {
		ticks++
	}
	return uint64(min(max(ticks+beatBias, 0), beatMask))
}

// Pulses are the part of a Table that every goroutine may use. Their methods lock nothing and allocate nothing.
type Heartbeats struct {
	blocks atomic.Pointer[[]*[slab.BlockSize]heartbeat]
}

// Beat renews the session that ref names, if it is Alive. Otherwise it is false, nothing has changed, and the beat is for
// Table.Beat. It is one compare-and-swap: a beat counts before the session is made Suspect, or is told that it does not count.
func (p *Heartbeats) Beat(now monotonic.Instant, ref Ref, sequence uint64) bool {
	pulse := p.at(ref.slot)
	if pulse == nil {
		return false
	}
	next := wordOf(ref.generation, true, now)
	for {
		word := pulse.word.Load()
		if (word^next)&^beatMask != 0 {
			return false // another life, or not Alive
		}
		if word >= next || pulse.word.CompareAndSwap(word, next) {
			pulse.sequence.Store(sequence)
			return true
		}
	}
}

// LastBeat is when the holder of the session that ref names was last heard; false once that life of it is over.
func (p *Heartbeats) LastBeat(ref Ref) (monotonic.Instant, bool) {
	pulse := p.at(ref.slot)
	if pulse == nil {
		return 0, false
	}
	word := pulse.word.Load()
	return beatIn(word), generationIn(word) == ref.generation
}

// at is nil where there was no session yet.
func (p *Heartbeats) at(slot uint32) *heartbeat {
	blocks := p.blocks.Load()
	if blocks == nil || int(slot/slab.BlockSize) >= len(*blocks) {
		return nil
	}
	return &(*blocks)[slot/slab.BlockSize][slot%slab.BlockSize]
}
