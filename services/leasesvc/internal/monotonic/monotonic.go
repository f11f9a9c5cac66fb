// Package monotonic gives the cores of leasesvc a notion of time that nothing but waiting can move.
//
// Promise: an Instant is a count of nanoseconds from an origin that its owner chose. It never follows the wall clock, so a
// stepped clock cannot kill or revive anybody, and a core that takes Instants as parameters is deterministic.
//
// It reads no clock: whoever owns the origin does.
package monotonic

import "time"

// Instant is the time that has passed since the owner's origin. Instants of different origins cannot be compared.
type Instant int64

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns how long after j the instant i is; negative when i comes first.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }
