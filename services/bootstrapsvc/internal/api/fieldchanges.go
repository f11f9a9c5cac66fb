package api

import (
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/shadow"
)

// maxFieldChanges bounds the fields that one change shows.
const maxFieldChanges = 100

// fieldChanges returns the fields in which two states of an object differ, ordered by path. It
// returns none for an object that is created or deleted.
func fieldChanges(before, after baseline.Object) []*metav1.FieldChange {
	fields := shadow.Fields(before, after)
	var changes []*metav1.FieldChange
	for _, field := range fields[:min(len(fields), maxFieldChanges)] {
		changes = append(changes, &metav1.FieldChange{Path: field.Path, Before: field.Before, After: field.After})
	}
	return changes
}
