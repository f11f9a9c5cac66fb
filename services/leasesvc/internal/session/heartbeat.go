package session

import (
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// The word of a heartbeat holds the generation of the slot, whether the session is Alive, and the
// time of the last beat. All three change in one step, so a beat counts for the session that it was
// sent for, or not at all.
//
//	63         40   39   38                              0
//	 generation    alive   milliseconds, biased, rounded up
const (
	beatBits       = 39
	beatMask       = 1<<beatBits - 1
	aliveBit       = 1 << beatBits
	generationBits = 64 - beatBits - 1
	// lastGeneration is the last generation of a slot. The slot is not reused then, so a Ref is
	// always unique.
	lastGeneration = 1<<generationBits - 1
	// beatBias allows instants up to 4 years before the origin. 13 years remain after it.
	beatBias = 1 << 37
)

type heartbeat struct {
	word atomic.Uint64
	// sequence of the last beat, for display. A beat during the end of its session may leave its
	// own sequence here.
	sequence atomic.Uint64
}

func wordOf(generation uint32, alive bool, beat monotonic.Instant) uint64 {
	word := uint64(generation)<<(beatBits+1) | milliseconds(beat)
	if alive {
		word |= aliveBit
	}
	return word
}

func generationIn(word uint64) uint32 { return uint32(word >> (beatBits + 1)) }

// beatIn returns the time of the last beat, rounded up to a millisecond.
func beatIn(word uint64) monotonic.Instant {
	return monotonic.Instant((int64(word&beatMask) - beatBias) * int64(time.Millisecond))
}

// milliseconds rounds up and adds the bias.
func milliseconds(i monotonic.Instant) uint64 {
	ms := int64(i) / int64(time.Millisecond)
	if int64(i) > ms*int64(time.Millisecond) {
		ms++
	}
	return uint64(min(max(ms+beatBias, 0), beatMask))
}

// Heartbeats takes beats of Alive sessions from any goroutine. Its methods take no lock and
// allocate nothing.
type Heartbeats struct {
	blocks atomic.Pointer[[]*[BlockSize]heartbeat]
}

// Beat renews the session if it is Alive. Otherwise it returns false and changes nothing; the
// caller must then use Table.Beat.
func (h *Heartbeats) Beat(now monotonic.Instant, ref Ref, sequence uint64) bool {
	heartbeat := h.at(ref.slot)
	if heartbeat == nil {
		return false
	}
	next := wordOf(ref.generation, true, now)
	for {
		word := heartbeat.word.Load()
		if (word^next)&^beatMask != 0 {
			return false // another generation, or not Alive
		}
		if word >= next || heartbeat.word.CompareAndSwap(word, next) {
			heartbeat.sequence.Store(sequence)
			return true
		}
	}
}

// LastBeat returns the time of the session's last beat. It is false if the Ref is invalid.
func (h *Heartbeats) LastBeat(ref Ref) (monotonic.Instant, bool) {
	heartbeat := h.at(ref.slot)
	if heartbeat == nil {
		return 0, false
	}
	word := heartbeat.word.Load()
	return beatIn(word), generationIn(word) == ref.generation
}

// at returns nil for a slot that was never used.
func (h *Heartbeats) at(slot uint32) *heartbeat {
	blocks := h.blocks.Load()
	if blocks == nil || int(slot/BlockSize) >= len(*blocks) {
		return nil
	}
	return &(*blocks)[slot/BlockSize][slot%BlockSize]
}
