package debugbundle

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

const redactedText = "REDACTED"

// redactor replaces secrets.
type redactor struct {
	// known are secrets of the person that runs the command.
	known [][]byte
}

// minKnown is the shortest known secret: a shorter one would be in other words.
const minKnown = 8

func newRedactor(known ...string) *redactor {
	r := &redactor{}
	for _, secret := range known {
		if len(secret) >= minKnown {
			r.known = append(r.known, []byte(secret))
		}
	}
	return r
}

// names of values that are secret; not those of files, audiences or Kubernetes Secrets.
const secretName = `(?:[\w.-]*(?:password|passwd|passphrase|api[-_]?key|private[-_]?key|secret[-_]?(?:access[-_]?)?key)` +
	`|(?:[\w-]*[-_.]|access|api|auth|bearer|client|id|refresh|session)?(?:secret|token|credentials?|authorization))`

// secretPatterns find secrets in text. The groups stay.
var secretPatterns = []*regexp.Regexp{
	// PEM, also as one JSON string; without an end, up to the end of the text.
	regexp.MustCompile(`(?s)-----BEGIN[A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END[A-Z0-9 ]*PRIVATE KEY-----|\z)`),
	// Base64 of PEM.
	regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*`),
	// JSON Web Tokens, also those of ServiceAccounts.
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	// Bootstrap tokens of kubeadm.
	regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
	// Any other scheme of an Authorization header.
	regexp.MustCompile(`(?i)(\bauthorization\s*[:=]\s*)[\w-]+ +[^\s"',;{}\[\]\\]{3,}`),
	// User and password of a URL. A password may have / or @; the port of a host is none.
	regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^/\s"']+@`),
	regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^/@\s"':\[]+:(?:[^0-9/@\s"']|[0-9]+[^0-9/@\s"'])[^@\s"']*@`),
	// "token": "x", also inside of a JSON string; token='x'; --token=x and token: x.
	regexp.MustCompile(`(?i)(\b` + secretName + `\\?["']?\s*[:=]\s*)` +
		`(?:(\\")[^"\\]+|(")(?:[^"\\\n]|\\.)+|(')[^'\n]+|[^\s"'{}\[\]\\]{2,}[^\s"'{}\[\]\\,;])`),
	// {"--token", "x"}.
	regexp.MustCompile(`(?i)("--?` + secretName + `"\s*,\s*")[^"]+`),
}

// text returns the text without secrets, and how many were replaced.
func (r *redactor) text(body []byte) (redacted []byte, count int) {
	for _, secret := range r.known {
		count += bytes.Count(body, secret)
		body = bytes.ReplaceAll(body, secret, []byte(redactedText))
	}
	for _, pattern := range secretPatterns {
		body = pattern.ReplaceAllFunc(body, func(found []byte) []byte {
			if bytes.HasSuffix(bytes.TrimSuffix(found, []byte("@")), []byte(redactedText)) {
				return found
			}
			count++
			kept := bytes.Join(pattern.FindSubmatch(found)[1:], nil)
			if bytes.HasSuffix(found, []byte("@")) {
				return append(kept, redactedText+"@"...)
			}
			return append(kept, redactedText...)
		})
	}
	return body, count
}

// lastApplied repeats an object, with the values of its environment variables.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// objects returns a list of Kubernetes without what may be secret by its place: values of
// environment variables, annotations of tools, data of ConfigMaps, and managedFields, which are
// long.
func objects(body []byte) ([]byte, error) {
	var list any
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	clean(list)
	return json.MarshalIndent(list, "", " ")
}

func clean(value any) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			clean(item)
		}
	case map[string]any:
		delete(value, "managedFields")
		for key, item := range value {
			switch key {
			case "env":
				cleanEnvironment(item)
			case "annotations":
				cleanAnnotations(item)
			case "httpHeaders": // of probes
				value[key] = redactedText
			default:
				clean(item)
			}
		}
	}
}

// cleanEnvironment keeps names, and where a value comes from.
func cleanEnvironment(list any) {
	variables, _ := list.([]any)
	for _, item := range variables {
		if variable, ok := item.(map[string]any); ok && variable["value"] != nil {
			variable["value"] = redactedText
		}
	}
}

// cleanAnnotations keeps the values of those that Kubernetes and Trivet write.
func cleanAnnotations(value any) {
	annotations, _ := value.(map[string]any)
	for name := range annotations {
		domain, _, _ := strings.Cut(name, "/")
		ours := strings.HasSuffix(domain, "trivet.dev") || strings.HasSuffix(domain, "kubernetes.io")
		if name == lastApplied || !ours {
			annotations[name] = redactedText
		}
	}
}
