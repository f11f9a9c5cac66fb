package findings

import (
	"fmt"
	"regexp"
	"strings"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// prefix is what the API's names begin with.
const prefix = "findings/"

// ParseName reads a finding's name, as the list prints it or as the API has it, and returns the API's.
func ParseName(text string) (string, error) {
	name := prefix + strings.TrimPrefix(text, prefix)
	if len(name) > 256 || !regexp.MustCompile(`^findings/[-a-z0-9._:]+$`).MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a finding: lower-case letters, digits and -._:, at most 256", text)
	}
	return name, nil
}

// ShortName is a finding's name as the list prints it.
func ShortName(name string) string { return strings.TrimPrefix(name, prefix) }

// Word is a code as people write it: "not-allocated".
func Word(code bootstrapv1.Finding_Code) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(code.String(), "CODE_"), "_", "-"))
}

// Page is where the documentation explains a code; empty for one that this trivet does not know.
func Page(code bootstrapv1.Finding_Code) string {
	if _, known := bootstrapv1.Finding_Code_name[int32(code)]; !known || code == bootstrapv1.Finding_CODE_UNSPECIFIED {
		return ""
	}
	return "docs/findings/" + Word(code) + ".md"
}

// words are all codes that may be asked for, in the order of the API.
func words() []string {
	var all []string
	values := bootstrapv1.Finding_CODE_UNSPECIFIED.Descriptor().Values()
	for i := range values.Len() {
		if code := bootstrapv1.Finding_Code(values.Get(i).Number()); code != bootstrapv1.Finding_CODE_UNSPECIFIED {
			all = append(all, Word(code))
		}
	}
	return all
}

// codeOf is the code of a word; unspecified for none.
func codeOf(word string) bootstrapv1.Finding_Code {
	return bootstrapv1.Finding_Code(bootstrapv1.Finding_Code_value["CODE_"+strings.ToUpper(strings.ReplaceAll(word, "-", "_"))])
}
