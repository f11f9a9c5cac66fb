package testkit

import (
	"slices"

	"github.com/trivet-dev/trivet/internal/decisions"
)

// Decisions returns the decisions with one of the actions, or all, in the order of time: the action
// and the name of the object, such as "NODE_BACK node-1".
func Decisions(log *decisions.Log, actions ...decisions.Action) []string {
	kept, _, _ := log.After(decisions.Cursor{})
	var texts []string
	for i := range kept {
		if d := &kept[i]; len(actions) == 0 || slices.Contains(actions, d.Action) {
			texts = append(texts, d.Action.String()+" "+d.Object.Name)
		}
	}
	return texts
}
