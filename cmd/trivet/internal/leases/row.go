package leases

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// failing is how many attempts at a write must fail running before somebody should look: one conflict, or one slow moment of the
// kube-apiserver, mends itself.
const failing = 3

// kind is that of sessions. In one namespace, its name needs no column.
func kind(oneNamespace bool) list.Kind[*leasev1.Lease] {
	return list.Kind[*leasev1.Lease]{
		Noun: "lease",
		Columns: []list.Column{
			{Title: "NAMESPACE", Wide: oneNamespace}, {Title: "HOLDER"}, {Title: "CLASS"}, {Title: "STATE", State: true, Width: len("suspect")},
			{Title: "LAST-BEAT"}, {Title: "DEADLINE", Width: len("59m59s ago")}, {Title: "WRITTEN", Width: len("failed 3 times")}, {Title: "NEXT-WRITE"}, {Title: "RENEW-AGE"}, {Title: "SHARD"},
			{Title: "BOOT", Wide: true}, {Title: "SEQUENCE", Wide: true}, {Title: "STARTED", Wide: true}, {Title: "EPOCH", Wide: true},
			{Title: "VERSION", Wide: true}, {Title: "WHY", Wide: true}, {Title: "DUPLICATE"}, {Title: "ERROR", Wide: true},
		},
		Row:     row,
		State:   func(lease *leasev1.Lease) string { return word(lease.GetState()) },
		Concern: concern,
		Trouble: trouble,
		Tally:   tally,
		Quiet:   quiet,
		Watched: watched,
	}
}

func row(now time.Time, lease *leasev1.Lease) []printer.Cell {
	namespace, name := split(lease.GetName())
	write := lease.GetWrite()
	return []printer.Cell{
		{Text: cmp.Or(namespace, "-")}, {Text: cmp.Or(lease.GetHolder().GetName(), name)}, {Text: cmp.Or(lease.GetHolder().GetClass(), "-")},
		{Text: word(lease.GetState()), Tone: tone(lease.GetState())}, {Text: lastBeat(now, lease)}, {Text: printer.Due(now, lease.GetDeadline())},
		written(now, write), {Text: printer.Due(now, write.GetDueTime())}, {Text: printer.Since(now, write.GetRenewTime())}, {Text: fmt.Sprint(lease.GetShard())},
		{Text: cmp.Or(lease.GetHolder().GetBootId(), "-")}, {Text: fmt.Sprint(lease.GetSequence())}, {Text: printer.Since(now, lease.GetStartTime())},
		{Text: fmt.Sprint(lease.GetEpoch())}, {Text: cmp.Or(write.GetResourceVersion(), "-")}, {Text: cmp.Or(write.GetReason(), "-")},
		duplicate(lease.GetDuplicate()), {Text: write.GetLastError()},
	}
}

// lastBeat is how long ago it came; "live" stands for beats that come all the time.
func lastBeat(now time.Time, lease *leasev1.Lease) string {
	if lease.GetLastBeatTime() == nil && lease.GetState() == leasev1.Lease_STATE_ALIVE {
		return "live"
	}
	return printer.Since(now, lease.GetLastBeatTime())
}

// split takes the API's name of a lease apart.
func split(name string) (namespace, lease string) {
	namespace, lease, _ = strings.Cut(strings.TrimPrefix(name, "namespaces/"), "/leases/")
	return namespace, lease
}

func word(state leasev1.Lease_State) string {
	if state == leasev1.Lease_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ToLower(strings.TrimPrefix(state.String(), "STATE_"))
}

// words are all states that may be asked for.
func words() []string {
	return []string{word(leasev1.Lease_STATE_ALIVE), word(leasev1.Lease_STATE_SUSPECT), word(leasev1.Lease_STATE_EXPIRED)}
}

func tone(state leasev1.Lease_State) printer.Tone {
	switch state {
	case leasev1.Lease_STATE_ALIVE:
		return printer.Good
	case leasev1.Lease_STATE_EXPIRED:
		return printer.Bad
	default:
		return printer.Fair
	}
}

// written says how long ago the object was written, or why it does not stand as it should.
func written(now time.Time, write *leasev1.Lease_Write) printer.Cell {
	switch write.GetState() {
	case leasev1.Lease_Write_STATE_WRITTEN:
		return printer.Cell{Text: printer.Since(now, write.GetWriteTime())}
	case leasev1.Lease_Write_STATE_RETRYING:
		text := "failed " + printer.Count(int(write.GetFailures()), "time")
		if write.GetFailures() >= failing {
			return printer.Cell{Text: text, Tone: printer.Bad}
		}
		return printer.Cell{Text: text, Tone: printer.Fair}
	case leasev1.Lease_Write_STATE_NO_OWNER:
		return printer.Cell{Text: "no node", Tone: printer.Fair}
	case leasev1.Lease_Write_STATE_PENDING:
		return printer.Cell{Text: "not yet"}
	default:
		return printer.Cell{Text: "-"}
	}
}

func duplicate(other *leasev1.Lease_Duplicate) printer.Cell {
	if other == nil {
		return printer.Cell{Text: "-"}
	}
	return printer.Cell{Text: fmt.Sprintf("%s, %s", other.GetBootId(), printer.Count(int(other.GetRefusals()), "refusal")), Tone: printer.Bad}
}

func concern(lease *leasev1.Lease) list.Concern {
	write := lease.GetWrite()
	switch {
	case lease.GetState() == leasev1.Lease_STATE_EXPIRED, lease.GetDuplicate() != nil, failures(write) >= failing:
		return list.Ill
	case lease.GetState() != leasev1.Lease_STATE_ALIVE, failures(write) > 0, write.GetState() == leasev1.Lease_Write_STATE_NO_OWNER:
		return list.Doubt
	default:
		return list.None
	}
}

// failures is how many attempts at a write failed running. Those that found no Node are none: there is nothing to be written.
func failures(write *leasev1.Lease_Write) int32 {
	if write.GetState() == leasev1.Lease_Write_STATE_NO_OWNER {
		return 0
	}
	return write.GetFailures()
}

func trouble(lease *leasev1.Lease) string {
	switch {
	case lease.GetState() == leasev1.Lease_STATE_EXPIRED:
		return word(lease.GetState())
	case lease.GetDuplicate() != nil:
		return "boot " + lease.GetDuplicate().GetBootId() + " beats under the same name"
	default:
		return "its object could not be written: " + lease.GetWrite().GetLastError()
	}
}

func tally(leases []*leasev1.Lease) string {
	if len(leases) == 0 {
		return "no leases"
	}
	counts := map[string]int{}
	duplicates, unwritten, ownerless := 0, 0, 0
	for _, lease := range leases {
		counts[word(lease.GetState())]++
		if lease.GetDuplicate() != nil {
			duplicates++
		}
		if failures(lease.GetWrite()) > 0 {
			unwritten++
		}
		if lease.GetWrite().GetState() == leasev1.Lease_Write_STATE_NO_OWNER {
			ownerless++
		}
	}
	var parts []string
	for _, state := range append(words(), "-") {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	if duplicates > 0 {
		parts = append(parts, printer.Count(duplicates, "duplicate"))
	}
	if unwritten > 0 {
		parts = append(parts, fmt.Sprintf("%d could not be written", unwritten))
	}
	if ownerless > 0 {
		parts = append(parts, fmt.Sprintf("%d without a node", ownerless))
	}
	return printer.Count(len(leases), "lease") + ": " + strings.Join(parts, ", ")
}

// watched leaves out the last beat of a session that lives, because no event tells of the next one.
func watched(lease *leasev1.Lease) *leasev1.Lease {
	if lease.GetState() != leasev1.Lease_STATE_ALIVE {
		return lease
	}
	copied := proto.CloneOf(lease)
	copied.LastBeatTime, copied.Deadline, copied.Sequence = nil, nil, 0
	return copied
}

// quiet leaves out what every beat and every write moves, and what differs only because another replica keeps the session now.
// A replica reckons the start back from now, so that it is never quite the same; a session that begins anew shows by its boot.
func quiet(lease *leasev1.Lease) *leasev1.Lease {
	copied := proto.CloneOf(lease)
	copied.LastBeatTime, copied.Deadline, copied.Sequence, copied.Epoch, copied.StartTime = nil, nil, 0, 0, nil
	if write := copied.GetWrite(); write != nil {
		write.RenewTime, write.WriteTime, write.DueTime, write.ResourceVersion, write.Reason = nil, nil, nil, "", ""
		write.Failures = failures(write)
	}
	if other := copied.GetDuplicate(); other != nil {
		other.RefuseTime, other.Refusals = nil, 0
	}
	return copied
}
