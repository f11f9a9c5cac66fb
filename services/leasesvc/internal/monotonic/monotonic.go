// Package monotonic defines the time of the domain packages.
//
// Promise: an Instant never follows the wall clock, so a step of that clock expires and revives no
// holder. The package reads no clock: the owner of the origin does. So it is separate from
// pauseclock, and domain packages may import it.
package monotonic

import "time"

// Instant is the time since an origin, in nanoseconds. Instants of different origins must not be
// compared.
type Instant int64

// Add returns the instant d after i.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }
