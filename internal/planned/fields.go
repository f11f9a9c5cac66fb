package planned

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Field is a field that differs: its JSON before and after; "" for a value that is absent.
type Field struct{ Path, Before, After string }

// Fields are fields that differ. The zero value has none.
type Fields []Field

// Compare adds a field if its values differ. A nil value is absent.
func (f *Fields) Compare(path string, before, after any) {
	if !equality.Semantic.DeepEqual(before, after) {
		*f = append(*f, Field{Path: path, Before: JSON(before), After: JSON(after)})
	}
}

// CompareMaps adds the keys whose values differ, in no order.
func (f *Fields) CompareMaps(path string, before, after map[string]string) {
	for key, value := range before {
		if next, ok := after[key]; !ok {
			f.Compare(fmt.Sprintf("%s[%q]", path, key), value, nil)
		} else {
			f.Compare(fmt.Sprintf("%s[%q]", path, key), value, next)
		}
	}
	for key, value := range after {
		if _, ok := before[key]; !ok {
			f.Compare(fmt.Sprintf("%s[%q]", path, key), nil, value)
		}
	}
}

// Sort orders the fields by their paths; of one path, what goes comes before what comes.
func (f Fields) Sort() {
	slices.SortFunc(f, func(a, b Field) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), -cmp.Compare(a.Before, b.Before), cmp.Compare(a.After, b.After))
	})
}

const (
	// MaxFields bounds the fields of one change in the API.
	MaxFields = 100
	// MaxValue bounds the JSON of a value in the API, in bytes.
	MaxValue = 1024
)

// Proto returns the first fields as the API has them, their values bounded.
func (f Fields) Proto() []*metav1.FieldChange {
	var changes []*metav1.FieldChange
	for _, field := range f[:min(len(f), MaxFields)] {
		changes = append(changes, &metav1.FieldChange{Path: wording.Valid(field.Path), Before: bounded(field.Before), After: bounded(field.After)})
	}
	return changes
}

// bounded cuts a value without a mark: JSON that is cut shows that it is.
func bounded(value string) string {
	if len(value) > MaxValue {
		return strings.ToValidUTF8(value[:MaxValue], "")
	}
	return wording.Valid(value)
}

// JSON returns a value as JSON; "" for one that is absent.
func JSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil || string(text) == "null" {
		return ""
	}
	return string(text)
}
