package class

import (
	"testing"
)

// The value of --classes is refused, or the same classes after it is written and read again.
func FuzzParseList(f *testing.F) {
	f.Add(FormatList([]Class{DefaultNode()}))
	for _, text := range []string{
		`[]`, `[{}]`, `null`, `[{"name":"a","name":"b"}]`, `[{"name":"a","grace":"-1h"}]`, `[{"name":"a","grace":"9999999h"}]`,
		`[{"name":"\u0000","suspectAfter":-9223372036854775808}]`, `[{"name":"a","holderRule":{"type":"x","nameTemplate":"{{{"}}]`, `[] []`, "\xff",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		classes, err := ParseList(text)
		if err != nil {
			return
		}
		written := FormatList(classes)
		again, err := ParseList(written)
		if err != nil || len(again) != len(classes) || FormatList(again) != written {
			t.Errorf("%q is written as %q, and read again as %+v, %v", text, written, again, err)
		}
		for i := range classes {
			_ = newBinding(classes[i].HolderRule, nil)
		}
	})
}
