package printer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Missing returns a line for each missing part of an answer, sorted: "missing: leasesvc shards 3,
// 7: no leader".
func Missing(parts []*metav1.MissingPart) []string {
	var lines []string
	for _, part := range parts {
		lines = append(lines, "missing: "+missingPart(part))
	}
	slices.Sort(lines)
	return lines
}

func missingPart(part *metav1.MissingPart) string {
	text := part.GetService()
	if id := part.GetReplicaId(); id != "" {
		text += " replica " + id
	}
	switch shards := part.GetShards(); {
	case len(shards) == 1:
		text += " shard " + Shards(shards)
	case len(shards) > 1:
		text += " shards " + Shards(shards)
	}
	return text + ": " + cmp.Or(part.GetMessage(), part.GetReason(), part.GetCode().String())
}

// Shards returns ordered numbers with runs of three and more as ranges: "0-15, 20, 21".
func Shards(shards []int32) string {
	var parts []string
	for i := 0; i < len(shards); {
		end := i
		for end+1 < len(shards) && shards[end+1] == shards[end]+1 {
			end++
		}
		if end-i < 2 {
			end = i
			parts = append(parts, fmt.Sprint(shards[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", shards[i], shards[end]))
		}
		i = end + 1
	}
	return strings.Join(parts, ", ")
}

// Verb returns the verb of a planned change with its mark, and its style.
func Verb(verb metav1.Change_Verb) Cell {
	word := strings.ToLower(strings.TrimPrefix(verb.String(), "VERB_"))
	switch verb {
	case metav1.Change_VERB_CREATE:
		return Cell{Text: "+ " + word, Style: Success}
	case metav1.Change_VERB_UPDATE:
		return Cell{Text: "~ " + word, Style: Warning}
	case metav1.Change_VERB_DELETE:
		return Cell{Text: "- " + word, Style: Failure}
	default:
		return Cell{Text: "? " + word}
	}
}

// Outcome returns what came of a change.
func Outcome(outcome metav1.Change_Outcome) Cell {
	style := map[metav1.Change_Outcome]Style{
		metav1.Change_OUTCOME_APPLIED: Success, metav1.Change_OUTCOME_NOT_NEEDED: Dim,
		metav1.Change_OUTCOME_FAILED: Failure, metav1.Change_OUTCOME_SKIPPED: Warning,
	}[outcome]
	return Cell{Text: EnumWord(outcome, "OUTCOME_"), Style: style}
}

// Fields returns a line for each field that a change writes: "spec.replicas: 1 → 2".
func Fields(change *metav1.Change) []string {
	var lines []string
	for _, field := range change.GetFieldChanges() {
		lines = append(lines, fmt.Sprintf("%s: %s → %s", field.GetPath(), cmp.Or(field.GetBefore(), "(none)"), cmp.Or(field.GetAfter(), "(none)")))
	}
	return lines
}

// Condition returns the condition of a type; nil if the object has none.
func Condition(conditions []*metav1.Condition, conditionType string) *metav1.Condition {
	for _, condition := range conditions {
		if condition.GetType() == conditionType {
			return condition
		}
	}
	return nil
}

// ConditionMessage returns the message of a condition in a status, or its reason; empty if the
// condition has another status or does not exist.
func ConditionMessage(conditions []*metav1.Condition, conditionType string, status metav1.Condition_Status) string {
	condition := Condition(conditions, conditionType)
	if condition.GetStatus() != status {
		return ""
	}
	return cmp.Or(condition.GetMessage(), condition.GetReason(), conditionType)
}

// Owner returns the shard, the epoch and the replica of an object's owner. Each is "-" if unknown.
func Owner(owner *metav1.Owner) (shard, epoch, replica string) {
	shard, epoch = "-", "-"
	if owner != nil && owner.Shard != nil {
		shard = fmt.Sprint(owner.GetShard())
	}
	if owner.GetEpoch() != 0 {
		epoch = fmt.Sprint(owner.GetEpoch())
	}
	return shard, epoch, cmp.Or(owner.GetReplicaId(), "-")
}

// Object returns the namespace and name of an object, "shop/web"; empty for nil.
func Object(object *metav1.ObjectReference) string {
	if namespace := object.GetNamespace(); namespace != "" {
		return namespace + "/" + object.GetName()
	}
	return object.GetName()
}

// ObjectWithKind returns the kind, namespace and name of an object, "Service shop/web"; empty for
// nil.
func ObjectWithKind(object *metav1.ObjectReference) string {
	return strings.TrimSpace(object.GetKind() + " " + Object(object))
}

// Caller returns the user of a caller; "-" if the server authenticated none.
func Caller(caller *metav1.Caller) string { return cmp.Or(caller.GetUser(), "-") }

// SeverityStyle returns the style of a problem.
func SeverityStyle(severity metav1.Problem_Severity) Style {
	if severity == metav1.Problem_SEVERITY_ERROR {
		return Failure
	}
	return Warning
}
