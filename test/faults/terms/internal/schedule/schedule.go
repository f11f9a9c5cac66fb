package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/lab/schedule"
)

// Kind is the kind of a fault.
type Kind string

const (
	// Kill kills a replica. A new replica takes its slot.
	Kill Kind = "kill"
	// Freeze stops a replica's process with SIGSTOP for less than the TTL, FreezeLong for more.
	Freeze     Kind = "freeze"
	FreezeLong Kind = "freeze beyond the TTL"
	// BlockReceive blocks the bytes from etcd to a replica, and BlockSend those from a replica to
	// etcd. Blocked bytes arrive late, as after a retransmission by TCP. The long kinds last longer
	// than the TTL.
	BlockReceive     Kind = "block receive"
	BlockReceiveLong Kind = "block receive beyond the TTL"
	BlockSend        Kind = "block send"
	BlockSendLong    Kind = "block send beyond the TTL"
	// Revoke revokes a replica's lease.
	Revoke Kind = "revoke"
	// Compact compacts etcd's history while a replica is disconnected, so that its watch cannot
	// resume.
	Compact Kind = "compact"
	// Outage kills etcd and restarts it within the TTL, OutageLong after more than the TTL.
	Outage     Kind = "outage"
	OutageLong Kind = "outage beyond the TTL"
)

// kinds returns all kinds. A seed depends on their order.
func kinds() []Kind {
	return []Kind{Kill, Freeze, FreezeLong, BlockReceive, BlockReceiveLong, BlockSend, BlockSendLong, Revoke, Compact, Outage, OutageLong}
}

// recovery is the time after a fault in which its target has no other fault.
const recovery = 700 * time.Millisecond

// Fault is one scheduled fault.
type Fault struct {
	// Start is the time since the start of the schedule.
	Start time.Duration
	Kind  Kind
	// Replica is the index of the affected slot. Outages do not use it.
	Replica int
	// Duration is the time until the fault is reverted, or 0 if it cannot be reverted.
	Duration time.Duration
}

func (f Fault) String() string {
	if f.Kind == Outage || f.Kind == OutageLong {
		return fmt.Sprintf("%v: %s for %v", f.Start, f.Kind, f.Duration)
	}
	return fmt.Sprintf("%v: %s replica %d for %v", f.Start, f.Kind, f.Replica, f.Duration)
}

// Describe returns a schedule in one line.
func Describe(faults []Fault) string {
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "; ")
}

// Setting describes the system and the number of faults.
type Setting struct {
	Replicas int
	Faults   int
	TTL      time.Duration
}

// Draw returns the faults of a seed, ordered by time.
func Draw(seed uint64, s Setting) []Fault {
	d := &drawing{Setting: s, Drawing: schedule.New(seed, kinds()), replicas: make([]time.Duration, s.Replicas)}
	var drawn []Fault
	for range s.Faults {
		drawn = append(drawn, d.next())
	}
	return drawn
}

// drawing is the state of one Draw.
type drawing struct {
	Setting
	*schedule.Drawing[Kind]
	now time.Duration
	// replicas and etcd hold the time until which each target must have no other fault.
	replicas []time.Duration
	etcd     time.Duration
}

func (d *drawing) next() Fault {
	d.Refill()
	kind, _ := d.Next(nil)
	d.now += d.Between(300*time.Millisecond, 1300*time.Millisecond, time.Millisecond)
	f := Fault{Kind: kind, Duration: d.duration(kind)}
	if kind == Outage || kind == OutageLong {
		d.now = max(d.now, d.etcd)
		f.Start = d.now
		d.etcd = f.Start + f.Duration + 2*recovery // etcd also needs time to start
		return f
	}
	f.Replica = d.IntN(d.Replicas)
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
		return d.Between(100*time.Millisecond, d.TTL/2, time.Millisecond)
	case FreezeLong, BlockReceiveLong, BlockSendLong, OutageLong:
		return d.Between(d.TTL+d.TTL/4, 2*d.TTL, time.Millisecond)
	default:
		return 0
	}
}

// End returns the time at which the last fault is over.
func End(faults []Fault) time.Duration {
	if len(faults) == 0 {
		return 0
	}
	last := slices.MaxFunc(faults, func(a, b Fault) int { return int(a.Start + a.Duration - b.Start - b.Duration) })
	return last.Start + last.Duration
}
