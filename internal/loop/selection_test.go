package loop_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/loop"
)

func TestSelection(t *testing.T) {
	t.Parallel()
	// "rare" is off by default.
	names := []string{"common", "other", "rare"}
	for name, test := range map[string]struct {
		spec    []string
		enabled []string
	}{
		"nothing said":                   {nil, []string{"common", "other"}},
		"star":                           {[]string{"*"}, []string{"common", "other"}},
		"star and a name":                {[]string{"*", "rare"}, []string{"common", "other", "rare"}},
		"a name and star":                {[]string{"rare", "*"}, []string{"common", "other", "rare"}},
		"star less a name":               {[]string{"*", "-other"}, []string{"common"}},
		"a name alone":                   {[]string{"other"}, []string{"other"}},
		"less a name alone":              {[]string{"-other"}, nil},
		"first of yes and no":            {[]string{"other", "-other", "*"}, []string{"common", "other"}},
		"first of no and yes":            {[]string{"-other", "other", "*"}, []string{"common"}},
		"named twice":                    {[]string{"rare", "rare"}, []string{"rare"}},
		"less a name that is off anyway": {[]string{"*", "-rare"}, []string{"common", "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			selection, err := loop.ParseSelection(names, test.spec)
			if err != nil {
				t.Fatal(err)
			}
			var enabled []string
			for _, name := range names {
				if selection.Enabled(name, name == "rare") {
					enabled = append(enabled, name)
				}
			}
			if diff := cmp.Diff(test.enabled, enabled); diff != "" {
				t.Errorf("enabled by %q (-want +got):\n%s", test.spec, diff)
			}
		})
	}
}

func TestParseSelection_NamesAllUnknownEntries(t *testing.T) {
	t.Parallel()
	spec := []string{"*", "unknown", "-common", "-*", "", "--common"}
	_, err := loop.ParseSelection([]string{"other", "common"}, spec)
	const want = `--loops: no such loop: "unknown", "-*", "", "--common"; known are common, other`
	if err == nil || err.Error() != want {
		t.Errorf("ParseSelection(%q):\n got %v\nwant %s", spec, err, want)
	}
}

func TestParseSelection_KeepsNoReferenceToItsInput(t *testing.T) {
	t.Parallel()
	spec := []string{"common"}
	selection, err := loop.ParseSelection([]string{"common", "other"}, spec)
	if err != nil {
		t.Fatal(err)
	}
	spec[0] = "other"
	if !selection.Enabled("common", false) {
		t.Error("changing the input changed the selection")
	}
}
