package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout bounds the search for a linearization of one register. A history of the usual size
// needs far less.
const checkTimeout = 30 * time.Second

// operations returns the writes and reads of a shard, each with its last logged state.
func (h History) operations(shard int) []Event {
	var found []Event
	for _, log := range h.Logs {
		place := map[string]int{}
		for _, event := range log.Events {
			if event.Shard != shard || event.Kind != Wrote && event.Kind != Read {
				continue
			}
			name := string(event.Kind) + event.ID + event.Value.ID
			if i, known := place[name]; known {
				found[i] = event
				continue
			}
			place[name] = len(found)
			found = append(found, event)
		}
	}
	return found
}

// linearizable searches an order of the operations that respects the register's rule and the times
// of requests and answers.
func linearizable(operations []Event) porcupine.CheckResult {
	seen := firstSeen(operations)
	var history []porcupine.Operation
	for client, op := range operations {
		if op.Outcome == Unknown {
			at, wasSeen := seen[op.Value.ID]
			if op.Kind == Read || !wasSeen {
				continue // It changes nothing, or takes effect after all other operations.
			}
			op.Outcome, op.To = Applied, max(at, op.From)
		}
		history = append(history, porcupine.Operation{ClientId: client, Input: op, Call: op.From, Return: op.To})
	}
	return porcupine.CheckOperationsTimeout(registerModel(), history, checkTimeout)
}

// firstSeen returns, by id of a value, the time of the first answer that contained the value.
func firstSeen(operations []Event) map[string]int64 {
	seen := map[string]int64{}
	for _, op := range operations {
		if op.Outcome == Answered || op.Outcome == Refused {
			at, known := seen[op.Seen.ID]
			if !known {
				at = math.MaxInt64
			}
			seen[op.Seen.ID] = min(at, op.To)
		}
	}
	return seen
}

// registerModel is a register that refuses an epoch below its current one.
func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return Register{} },
		Step: func(state, input, _ any) (bool, any) {
			present, isRegister := state.(Register)
			op, isEvent := input.(Event)
			if !isRegister || !isEvent {
				return false, state
			}
			return op.step(present)
		},
	}
}

// step reports whether an operation is possible on a register, and returns the register after it.
func (e Event) step(present Register) (bool, Register) {
	if e.Outcome == Applied {
		return e.Value.Epoch >= present.Epoch, e.Value
	}
	return e.Seen == present, present
}

// stale describes the versions of a shard that took effect under an old epoch.
func (h History) stale(shard int) []string {
	gone := map[int64]int64{}
	for _, claim := range h.Claims {
		if claim.Shard == shard {
			gone[claim.Epoch] = claim.Gone
		}
	}
	versions := slices.SortedFunc(slices.Values(h.versions(shard)), func(a, b Version) int { return cmp.Compare(a.Revision, b.Revision) })
	var found []string
	highest := int64(0)
	for _, v := range versions {
		deleted, claimed := gone[v.Register.Epoch]
		switch {
		case v.Register.Epoch < highest:
			found = append(found, fmt.Sprintf("shard %d: revision %d wrote epoch %d after %d", shard, v.Revision, v.Register.Epoch, highest))
		case !claimed:
			found = append(found, fmt.Sprintf("shard %d: revision %d wrote epoch %d, which no replica claimed", shard, v.Revision, v.Register.Epoch))
		case deleted != 0 && deleted <= v.Revision:
			found = append(found, fmt.Sprintf("shard %d: revision %d wrote epoch %d, whose key was deleted at %d", shard, v.Revision, v.Register.Epoch, deleted))
		}
		highest = max(highest, v.Register.Epoch)
	}
	return found
}

func (h History) versions(shard int) []Version {
	return slices.DeleteFunc(slices.Clone(h.Versions), func(v Version) bool { return v.Shard != shard })
}

// contradictions describes the logged answers and activities of a shard that etcd's record
// contradicts.
func (h History) contradictions(shard int) []string {
	took := h.tookEffect(shard)
	var found []string
	for _, op := range h.operations(shard) {
		if op.Kind == Wrote && op.Outcome != Unknown && took[op.Value.ID] != (op.Outcome == Applied) {
			found = append(found, fmt.Sprintf("shard %d: write %v was answered %q, took effect: %t", shard, op.Value, op.Outcome, took[op.Value.ID]))
		}
	}
	for _, a := range h.activities(shard) {
		claimed := slices.ContainsFunc(h.Claims, func(c Claim) bool {
			return c.Shard == shard && c.Epoch == a.epoch && c.Holder == a.replica
		})
		if !claimed {
			found = append(found, fmt.Sprintf("shard %d: %s acted under epoch %d, which it had not claimed", shard, a.replica, a.epoch))
		}
	}
	return found
}

// tookEffect returns the ids of the effective writes of a shard.
func (h History) tookEffect(shard int) map[string]bool {
	took := map[string]bool{}
	for _, v := range h.versions(shard) {
		took[v.Register.ID] = true
	}
	return took
}
