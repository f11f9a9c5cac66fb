package printer

import (
	"strings"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Verb says what a step of a plan does, with a mark before it, and in which tone.
func Verb(verb statusv1.Change_Verb) (string, Tone) {
	word := strings.ToLower(strings.TrimPrefix(verb.String(), "VERB_"))
	switch verb {
	case statusv1.Change_VERB_CREATE:
		return "+ " + word, Good
	case statusv1.Change_VERB_UPDATE:
		return "~ " + word, Fair
	case statusv1.Change_VERB_DELETE:
		return "- " + word, Bad
	default:
		return "? " + word, Usual
	}
}
