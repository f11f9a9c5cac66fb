package authn

import (
	"regexp"
	"strings"
)

// tokenStart begins each JSON Web Token: it is the encoded text `{"`. No name of Kubernetes has it.
const tokenStart = "eyJ"

var tokens = regexp.MustCompile(tokenStart + `[\w-]{8,}\.[\w-]{8,}(\.[\w-]*)?`)

// Redact replaces what looks like a token. A person may give one in the place of a name, and names
// are written to logs.
func Redact(text string) string {
	if !strings.Contains(text, tokenStart) {
		return text
	}
	return tokens.ReplaceAllLiteralString(text, "<token>")
}
