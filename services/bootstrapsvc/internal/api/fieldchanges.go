package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// maxFieldChanges bounds the fields that one change shows.
const maxFieldChanges = 100

// fieldChanges returns the fields in which two states of an object differ, ordered by path. It
// returns none for an object that is created or deleted.
func fieldChanges(before, after baseline.Object) []*metav1.FieldChange {
	if before == nil || after == nil {
		return nil
	}
	var d fieldDiff
	d.compare("", valueOf(before), valueOf(after))
	slices.SortFunc(d.changes, func(a, b *metav1.FieldChange) int { return strings.Compare(a.GetPath(), b.GetPath()) })
	return d.changes[:min(len(d.changes), maxFieldChanges)]
}

// valueOf returns the JSON of an object as maps, lists and scalars.
func valueOf(object baseline.Object) any {
	var value any
	raw, err := json.Marshal(object)
	if err != nil || json.Unmarshal(raw, &value) != nil {
		return nil // objects of Kubernetes can always be encoded
	}
	return value
}

type fieldDiff struct{ changes []*metav1.FieldChange }

// compare descends into maps, and into lists of equal length. Other values that differ are one
// change.
func (d *fieldDiff) compare(path string, before, after any) {
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			d.compareMaps(path, b, a)
			return
		}
	case []any:
		if a, ok := after.([]any); ok && len(a) == len(b) {
			for i := range b {
				d.compare(fmt.Sprintf("%s[%d]", path, i), b[i], a[i])
			}
			return
		}
	}
	if from, to := jsonOf(before), jsonOf(after); from != to {
		d.changes = append(d.changes, &metav1.FieldChange{Path: path, Before: from, After: to})
	}
}

func (d *fieldDiff) compareMaps(path string, before, after map[string]any) {
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for key := range keys {
		d.compare(pathTo(path, key), before[key], after[key])
	}
}

// pathTo quotes keys that are no names of fields, such as those of labels.
func pathTo(path, key string) string {
	switch {
	case strings.ContainsAny(key, "./-[]\""):
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	default:
		return path + "." + key
	}
}

func jsonOf(value any) string {
	if value == nil {
		return ""
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return string(raw)
}
