// Package shadow turns the planned changes of a loop in dry run into differences from what another
// program writes.
//
// Invariants: no I/O, no clock. Inputs are not changed.
package shadow

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// SecondFamily is the reason of the slice of the second family, which kube-apiserver does not
// write.
const SecondFamily = "SECOND_FAMILY"

// Compare returns the differences of a plan, by subject. Reports are none: they write nothing.
func Compare(changes []baseline.Change) map[string][]difference.Difference {
	found := map[string][]difference.Difference{}
	for _, change := range baseline.Writes(changes) {
		apiVersion, kind := change.Kind().ToAPIVersionAndKind()
		object := difference.Object{
			APIVersion: apiVersion, Kind: kind, Namespace: change.Object.GetNamespace(), Name: change.Object.GetName(),
		}
		subject := strings.TrimSuffix(strings.ToLower(kind), "s") + "s/" + strings.TrimPrefix(object.Namespace+"/"+object.Name, "/")
		found[subject] = append(found[subject], differencesOf(change, object)...)
	}
	return found
}

func differencesOf(change baseline.Change, object difference.Object) []difference.Difference {
	d := difference.Difference{Object: object, Message: fmt.Sprintf("%s: %s", change.Reason, change.Detail), Reason: reasonOf(change)}
	switch change.Verb {
	case planned.Create:
		d.Kind = difference.Missing
		return []difference.Difference{d}
	case planned.Delete:
		d.Kind = difference.Unwanted
		d.Object.UID, d.Version, d.Writer = string(change.Object.GetUID()), change.Object.GetResourceVersion(), writerOf(change.Object)
		return []difference.Difference{d}
	}
	d.Object.UID, d.Version, d.Writer = string(change.Before.GetUID()), change.Before.GetResourceVersion(), writerOf(change.Before)
	content, metadata := d, d
	content.Kind, metadata.Kind = difference.Content, difference.Metadata
	for _, field := range Fields(change.Before, change.Object) {
		if strings.HasPrefix(field.Path, "metadata.") {
			metadata.Fields = append(metadata.Fields, field)
		} else {
			content.Fields = append(content.Fields, field)
		}
	}
	var found []difference.Difference
	for _, of := range []difference.Difference{content, metadata} {
		if of.FieldCount = len(of.Fields); of.FieldCount > 0 {
			found = append(found, of)
		}
	}
	return found
}

func reasonOf(change baseline.Change) string {
	if _, isSlice := change.Object.(*discoveryv1.EndpointSlice); isSlice && change.Verb == planned.Create && change.Object.GetName() != baseline.ServiceName {
		return SecondFamily
	}
	return ""
}

// Undetermined returns why a plan does not say what must be written; "" if it does.
func Undetermined(changes []baseline.Change) string {
	for _, change := range baseline.Reports(changes) {
		switch change.Reason {
		case apiservers.NoServerReports, apiservers.NoServerReady, apiservers.StaticUnresolved, apiservers.FamilyUnknown,
			baseline.ClusterIPUnknown, baseline.CIDRUnreadable:
			return change.Detail
		}
	}
	return ""
}

// writerOf returns the field manager that wrote an object last; "" if it is not known.
func writerOf(object baseline.Object) string {
	var newest *metav1.ManagedFieldsEntry
	managed := object.GetManagedFields()
	for i := range managed {
		entry := &managed[i]
		if newest == nil || entry.Time != nil && (newest.Time == nil || newest.Time.Before(entry.Time)) {
			newest = entry
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Manager
}

// Fields returns the fields in which two states of an object differ, ordered by path. It returns
// none for an object that is created or deleted.
func Fields(before, after baseline.Object) planned.Fields {
	if before == nil || after == nil {
		return nil
	}
	var fields planned.Fields
	compare(&fields, "", valueOf(before), valueOf(after))
	fields.Sort()
	return fields
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

// compare descends into maps, and into lists of equal length. Other values that differ are one
// field.
func compare(fields *planned.Fields, path string, before, after any) {
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			compareMaps(fields, path, b, a)
			return
		}
	case []any:
		if a, ok := after.([]any); ok && len(a) == len(b) {
			for i := range b {
				compare(fields, fmt.Sprintf("%s[%d]", path, i), b[i], a[i])
			}
			return
		}
	}
	fields.Compare(path, before, after)
}

func compareMaps(fields *planned.Fields, path string, before, after map[string]any) {
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for key := range keys {
		compare(fields, pathTo(path, key), before[key], after[key])
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
