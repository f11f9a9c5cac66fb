package planned_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/planned"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestFields_CompareByValueAndSortByPath(t *testing.T) {
	var fields planned.Fields
	fields.Compare("spec", []string{}, []string(nil)) // equal for kube-apiserver
	fields.Compare("b", nil, true)
	fields.CompareMaps("a", map[string]string{"gone": "1", "kept": "1", "next": "1"}, map[string]string{"kept": "1", "next": "2", "new": ""})
	fields.Sort()
	want := planned.Fields{
		{`a["gone"]`, `"1"`, ""}, {`a["new"]`, "", `""`}, {`a["next"]`, `"1"`, `"2"`}, {"b", "", "true"},
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestFields_AreBoundedInTheAPI(t *testing.T) {
	long := make(planned.Fields, planned.MaxFields+1)
	long[0] = planned.Field{Path: "a\xff", Before: strings.Repeat("ä", planned.MaxValue), After: "\xff"}
	changes := long.Proto()
	first := changes[0]
	if len(changes) != planned.MaxFields || len(first.GetBefore()) > planned.MaxValue || !utf8.ValidString(first.GetPath()+first.GetBefore()+first.GetAfter()) {
		t.Errorf("%d changes, the first is %v", len(changes), first)
	}
}

func TestVerb_Proto(t *testing.T) {
	for verb, want := range map[planned.Verb]metav1.Change_Verb{
		planned.Create: metav1.Change_VERB_CREATE, planned.Update: metav1.Change_VERB_UPDATE, planned.Relabel: metav1.Change_VERB_UPDATE,
		planned.SetBit: metav1.Change_VERB_UPDATE, planned.ClearBit: metav1.Change_VERB_UPDATE, planned.Delete: metav1.Change_VERB_DELETE,
		planned.Report: metav1.Change_VERB_UNSPECIFIED, planned.None: metav1.Change_VERB_UNSPECIFIED,
	} {
		if got := verb.Proto(); got != want {
			t.Errorf("%s is %v, want %v", verb, got, want)
		}
	}
}
