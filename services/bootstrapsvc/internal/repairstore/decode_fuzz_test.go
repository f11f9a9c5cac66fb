package repairstore

import (
	"encoding/json"
	"testing"
)

// Stored values that another program has damaged are unreadable, or they have the identity of their
// key and as many results as steps. Values that are read can be written.
func FuzzDecode(f *testing.F) {
	for _, value := range []string{
		`{"id":"a","version":1}`, `{"ID":"a","Version":1,"Steps":[{}]}`, `{"id":"a","id":"b"}`, `{"ID":"a","Steps":[null,{"Number":1e99}]}`,
		`{"ID":"a","Started":"0001-01-01T00:00:00Z"}`, `{"ID":"a","Created":"9999-12-31T23:59:59Z"}`, "null", "[]", "", "\xff", `"`,
	} {
		f.Add([]byte(value), endPart, []byte(`{}`))
		f.Add([]byte(value), "0", []byte(value))
		f.Add([]byte(value), "-1", []byte(`null`))
	}
	f.Fuzz(func(t *testing.T, start []byte, part string, value []byte) {
		parts := map[string][]byte{planPart: start, part: value}
		if repair, err := decodeRepair("a", parts); err == nil {
			if repair.ID != "a" || len(repair.Results) != len(repair.Steps) {
				t.Errorf("%q is read as repair %q with %d results of %d steps", start, repair.ID, len(repair.Results), len(repair.Steps))
			}
			if _, err := json.Marshal(repair); err != nil {
				t.Errorf("%q is read and cannot be written: %v", start, err)
			}
			_ = CompareRepairs(repair, Repair{})
		}
		if plan, err := decodePlan("a", parts); err == nil {
			if plan.ID != "a" {
				t.Errorf("%q is read as plan %q", start, plan.ID)
			}
			if _, err := json.Marshal(plan); err != nil {
				t.Errorf("%q is read and cannot be written: %v", start, err)
			}
		}
	})
}
