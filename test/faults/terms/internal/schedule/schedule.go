package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind of a fault.
type Kind string

const (
	// Kill ends a replica's process; another replica starts in its place.
	Kill Kind = "kill"
	// Freeze stops a replica's process and lets it go on, after less than the TTL or, with FreezeLong, after more.
	Freeze     Kind = "freeze"
	FreezeLong Kind = "freeze beyond the TTL"
	// Deaf lets nothing from etcd reach a replica, Mute nothing from a replica reach etcd. What was swallowed arrives in the
	// end, late, as with TCP it does. The long ones last beyond the TTL.
	BlockReceive     Kind = "deaf"
	BlockReceiveLong Kind = "deaf beyond the TTL"
	BlockSend        Kind = "mute"
	BlockSendLong    Kind = "mute beyond the TTL"
	// Revoke takes a replica's lease away.
	Revoke Kind = "revoke"
	// Compact drops etcd's history while a replica is cut off, so that its watch cannot go on where it was.
	Compact Kind = "compact"
	// Outage kills etcd and starts it again, after less than the TTL or, with OutageLong, after more.
	Outage     Kind = "outage"
	OutageLong Kind = "outage beyond the TTL"
)

// kinds are all there are, in an order that never matters.
func kinds() []Kind {
	return []Kind{Kill, Freeze, FreezeLong, BlockReceive, BlockReceiveLong, BlockSend, BlockSendLong, Revoke, Compact, Outage, OutageLong}
}

// recovery is how long after a fault its target is left alone, so that the next one does not strike a corpse.
const recovery = 700 * time.Millisecond

// Fault is one thing to do.
type Fault struct {
	// At is when, from the beginning.
	Start time.Duration
	Kind  Kind
	// Replica is the place of the replica that is struck, from 0; of an outage it means nothing.
	Replica int
	// Lasts is how long until it is undone; 0 for what cannot be.
	Duration time.Duration
}

// String is the fault as a line in a log.
func (f Fault) String() string {
	if f.Kind == Outage || f.Kind == OutageLong {
		return fmt.Sprintf("%v: %s for %v", f.Start, f.Kind, f.Duration)
	}
	return fmt.Sprintf("%v: %s replica %d for %v", f.Start, f.Kind, f.Replica, f.Duration)
}

// Describe is a schedule in one line.
func Describe(faults []Fault) string {
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "; ")
}

// Setting is what faults are drawn for.
type Setting struct {
	Replicas int
	Faults   int
	TTL      time.Duration
}

// Draw draws faults, ordered by time.
func Draw(seed uint64, s Setting) []Fault {
	d := &drawing{Setting: s, random: rand.New(rand.NewPCG(seed, 0)), replicas: make([]time.Duration, s.Replicas)}
	var drawn []Fault
	for range s.Faults {
		drawn = append(drawn, d.next())
	}
	return drawn
}

// deal is one drawing.
type drawing struct {
	Setting
	random    *rand.Rand
	remaining []Kind
	now       time.Duration
	// replicas and etcd say until when each of them is left alone.
	replicas []time.Duration
	etcd     time.Duration
}

func (d *drawing) next() Fault {
	if len(d.remaining) == 0 {
		d.remaining = kinds()
		d.random.Shuffle(len(d.remaining), func(i, j int) { d.remaining[i], d.remaining[j] = d.remaining[j], d.remaining[i] })
	}
	kind := d.remaining[0]
	d.remaining = d.remaining[1:]
	d.now += d.between(300*time.Millisecond, 1300*time.Millisecond)
	f := Fault{Kind: kind, Duration: d.duration(kind)}
	if kind == Outage || kind == OutageLong {
		d.now = max(d.now, d.etcd)
		f.Start = d.now
		d.etcd = f.Start + f.Duration + 2*recovery // etcd also needs a while to start
		return f
	}
	f.Replica = d.random.IntN(d.Replicas)
	d.now = max(d.now, d.replicas[f.Replica])
	if kind == Revoke || kind == Compact {
		d.now = max(d.now, d.etcd)
		d.etcd = d.now + f.Duration + recovery
	}
	f.Start = d.now
	d.replicas[f.Replica] = f.Start + f.Duration + recovery
	return f
}

func (d *drawing) duration(kind Kind) time.Duration {
	switch kind {
	case Freeze, BlockReceive, BlockSend, Outage, Compact:
		return d.between(100*time.Millisecond, d.TTL/2)
	case FreezeLong, BlockReceiveLong, BlockSendLong, OutageLong:
		return d.between(d.TTL+d.TTL/4, 2*d.TTL)
	default:
		return 0
	}
}

// between is in whole milliseconds, so that it reads well.
func (d *drawing) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(d.random.Int64N(int64(most-least)))).Round(time.Millisecond)
}

// Ends is when the last of faults is over.
func End(faults []Fault) time.Duration {
	if len(faults) == 0 {
		return 0
	}
	last := slices.MaxFunc(faults, func(a, b Fault) int { return int(a.Start + a.Duration - b.Start - b.Duration) })
	return last.Start + last.Duration
}
