package leases

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// failureLimit is the number of failed writes in a row that need attention. A conflict or a slow
// kube-apiserver causes fewer.
const failureLimit = 3

// kind hides the column NAMESPACE, except with -o wide, if all leases are of one namespace.
func kind(oneNamespace bool) list.Kind[*leasev1.Lease] {
	return list.Kind[*leasev1.Lease]{
		Noun: "lease",
		Columns: []list.Column{
			{Title: "NAMESPACE", Wide: oneNamespace}, {Title: "HOLDER"}, {Title: "CLASS"}, {Title: "STATE", State: true, MinWidth: len("suspect")},
			{Title: "LAST-BEAT"}, {Title: "EXPIRES", MinWidth: len("59m59s ago")}, {Title: "WRITTEN", MinWidth: len("failed 3 times")},
			{Title: "NEXT-WRITE"}, {Title: "RENEW-AGE"}, {Title: "SHARD"},
			{Title: "BOOT", Wide: true}, {Title: "SEQUENCE", Wide: true}, {Title: "STARTED", Wide: true}, {Title: "EPOCH", Wide: true},
			{Title: "REPLICA", Wide: true}, {Title: "VERSION", Wide: true}, {Title: "REASON", Wide: true}, {Title: "AGENT", Wide: true},
			{Title: "CONDITIONS", Wide: true},
			{Title: "DUPLICATE"}, {Title: "ERROR", Wide: true},
		},
		Row:             row,
		State:           func(lease *leasev1.Lease) string { return word(lease.GetState()) },
		Severity:        severity,
		Problem:         problem,
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
		WithoutStale:    withoutStale,
	}
}

func word(state leasev1.Lease_State) string { return printer.EnumWord(state, "STATE_") }

// stateWords returns the values of --state.
func stateWords() []string { return printer.EnumWords[leasev1.Lease_State]("STATE_") }

func severity(lease *leasev1.Lease) list.Severity {
	write := lease.GetWrite()
	switch {
	case lease.GetState() == leasev1.Lease_STATE_EXPIRED, lease.GetDuplicate() != nil, failures(write) >= failureLimit:
		return list.Critical
	case lease.GetState() != leasev1.Lease_STATE_ALIVE, failures(write) > 0, write.GetState() == leasev1.Lease_Write_STATE_NO_OWNER:
		return list.Warning
	default:
		return list.Fine
	}
}

// failures returns the number of failed writes in a row. Without a Node there is nothing to write,
// so those attempts do not count.
func failures(write *leasev1.Lease_Write) int32 {
	if write.GetState() == leasev1.Lease_Write_STATE_NO_OWNER {
		return 0
	}
	return write.GetFailureCount()
}

func problem(lease *leasev1.Lease) string {
	switch {
	case lease.GetState() == leasev1.Lease_STATE_EXPIRED:
		return word(lease.GetState())
	case lease.GetDuplicate() != nil:
		return "boot " + lease.GetDuplicate().GetBootId() + " sends beats under the same name"
	default:
		return "its object could not be written: " + lease.GetWrite().GetLastError()
	}
}

func row(now time.Time, lease *leasev1.Lease) []printer.Cell {
	namespace, name := splitName(lease.GetName())
	write := lease.GetWrite()
	shard, epoch, replica := printer.Owner(lease.GetOwner())
	return []printer.Cell{
		{Text: cmp.Or(namespace, "-")}, {Text: cmp.Or(lease.GetHolder().GetName(), name)}, {Text: cmp.Or(lease.GetHolder().GetClass(), "-")},
		{Text: word(lease.GetState()), Style: stateStyle(lease.GetState())}, {Text: lastBeat(now, lease)}, {Text: printer.Due(now, lease.GetExpireTime())},
		writeCell(now, write), {Text: printer.Due(now, write.GetDueTime())}, {Text: printer.Since(now, write.GetRenewTime())}, {Text: shard},
		{Text: cmp.Or(lease.GetHolder().GetBootId(), "-")}, {Text: fmt.Sprint(lease.GetSequence())}, {Text: printer.Since(now, lease.GetStartTime())},
		{Text: epoch}, {Text: replica}, {Text: cmp.Or(write.GetResourceVersion(), "-")}, {Text: cmp.Or(write.GetReason(), "-")},
		{Text: agentName(lease.GetAgent())}, {Text: conditionList(lease.GetConditions())},
		duplicateCell(lease.GetDuplicate()), {Text: write.GetLastError()},
	}
}

func stateStyle(state leasev1.Lease_State) printer.Style {
	switch state {
	case leasev1.Lease_STATE_ALIVE:
		return printer.Success
	case leasev1.Lease_STATE_EXPIRED:
		return printer.Failure
	default:
		return printer.Warning
	}
}

// lastBeat returns the age of the last beat; "live" if only missing beats are reported.
func lastBeat(now time.Time, lease *leasev1.Lease) string {
	if lease.GetObserveTime() == nil && lease.GetState() == leasev1.Lease_STATE_ALIVE {
		return "live"
	}
	return printer.Since(now, lease.GetObserveTime())
}

// writeCell has the age of the last write of the object, or its problem.
func writeCell(now time.Time, write *leasev1.Lease_Write) printer.Cell {
	switch write.GetState() {
	case leasev1.Lease_Write_STATE_WRITTEN:
		return printer.Cell{Text: printer.Since(now, write.GetWriteTime())}
	case leasev1.Lease_Write_STATE_RETRYING:
		cell := printer.Cell{Text: "failed " + printer.Count(int(write.GetFailureCount()), "time"), Style: printer.Warning}
		if write.GetFailureCount() >= failureLimit {
			cell.Style = printer.Failure
		}
		return cell
	case leasev1.Lease_Write_STATE_NO_OWNER:
		return printer.Cell{Text: "no node", Style: printer.Warning}
	case leasev1.Lease_Write_STATE_PENDING:
		return printer.Cell{Text: "not yet"}
	case leasev1.Lease_Write_STATE_LEFT_TO_KUBELET:
		return printer.Cell{Text: "by kubelet"}
	default:
		return printer.Cell{Text: "-"}
	}
}

func duplicateCell(duplicate *leasev1.Lease_Duplicate) printer.Cell {
	if duplicate == nil {
		return printer.Cell{Text: "-"}
	}
	rejected := printer.Count(int(duplicate.GetRejectionCount()), "rejected beat")
	return printer.Cell{Text: fmt.Sprintf("%s, %s", duplicate.GetBootId(), rejected), Style: printer.Failure}
}

func summary(leases []*leasev1.Lease) string {
	if len(leases) == 0 {
		return "no leases"
	}
	counts := map[string]int{}
	for _, lease := range leases {
		counts[word(lease.GetState())]++
		if lease.GetDuplicate() != nil {
			counts["with a duplicate"]++
		}
		if failures(lease.GetWrite()) > 0 {
			counts["not written"]++
		}
		if lease.GetWrite().GetState() == leasev1.Lease_Write_STATE_NO_OWNER {
			counts["without a node"]++
		}
	}
	words := append(stateWords(), "-", "with a duplicate", "not written", "without a node")
	return printer.Count(len(leases), "lease") + ": " + printer.Counts(counts, words...)
}

// agentName returns the agent with its mode: "trivet-agent v1.2.3 (probe)".
func agentName(agent *leasev1.Lease_Agent) string {
	name := strings.TrimSpace(agent.GetName() + " " + agent.GetVersion())
	if agent.GetMode() != "" {
		name = strings.TrimSpace(name + " (" + agent.GetMode() + ")")
	}
	return cmp.Or(name, "-")
}

// conditionList returns the conditions that an agent reported: "KubeletHealthy=false (TIMEOUT)".
func conditionList(conditions []*metav1.Condition) string {
	var parts []string
	for _, condition := range conditions {
		text := condition.GetType() + "=" + printer.EnumWord(condition.GetStatus(), "STATUS_")
		if condition.GetReason() != "" {
			text += " (" + condition.GetReason() + ")"
		}
		parts = append(parts, text)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// withoutVolatile omits what each beat and each write changes, and the fields that depend on the
// replica that keeps the lease. A replica computes the start time from its clock, so it varies
// slightly; a new lease has another boot.
func withoutVolatile(lease *leasev1.Lease) *leasev1.Lease {
	copied := withoutBeat(lease)
	copied.Owner, copied.StartTime, copied.Etag = nil, nil, ""
	if write := copied.GetWrite(); write != nil {
		write.RenewTime, write.WriteTime, write.DueTime, write.ResourceVersion, write.Reason = nil, nil, nil, "", ""
		write.FailureCount = failures(write)
	}
	if duplicate := copied.GetDuplicate(); duplicate != nil {
		duplicate.LastRejectionTime, duplicate.RejectionCount = nil, 0
	}
	for _, condition := range copied.GetConditions() {
		condition.TransitionTime = nil
	}
	return copied
}

// withoutStale omits the last beat of an alive lease, because no event reports the next one.
func withoutStale(lease *leasev1.Lease) *leasev1.Lease {
	if lease.GetState() != leasev1.Lease_STATE_ALIVE {
		return lease
	}
	return withoutBeat(lease)
}

func withoutBeat(lease *leasev1.Lease) *leasev1.Lease {
	copied := proto.CloneOf(lease)
	copied.ObserveTime, copied.LastBeatTime, copied.ExpireTime, copied.Sequence = nil, nil, nil, 0
	return copied
}
