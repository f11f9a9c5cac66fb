package allocation

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// findingName is the resource name of a finding. Parts that hold other characters than names may are told apart by a hash.
func findingName(code Code, store Store, parts ...string) string {
	cleaned, changed := cleanName(strings.Join(parts, "_"))
	if changed || strings.Count(cleaned, "_") != max(len(parts)-1, 0) || len(cleaned) > maxSubjectLength {
		sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
		cleaned = cleaned[:min(len(cleaned), maxSubjectLength)] + "." + hex.EncodeToString(sum[:6])
	}
	full := "findings/" + code.String() + "." + store.String()
	if cleaned != "" {
		full += "." + cleaned
	}
	return full
}

// maxSubjectLength leaves room for the rest of a name, which may be 256 bytes long.
const maxSubjectLength = 180

func cleanName(text string) (string, bool) {
	changed := false
	cleaned := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', strings.ContainsRune("-._:", r):
			return r
		default:
			changed = true
			return '_'
		}
	}, text)
	return cleaned, changed
}

// text is the subject for people and in names.
func (s subject) text() string {
	switch {
	case s.address.IsValid():
		return s.address.String()
	case s.port != 0:
		return strconv.Itoa(int(s.port))
	case s.service != Key{}:
		return s.service.String()
	default:
		return clip(s.object)
	}
}

func (s subject) name(code Code) string {
	switch {
	case s.service != Key{}:
		return findingName(code, s.store, s.service.Namespace, s.service.Name)
	case s.object != "":
		return findingName(code, s.store, s.object)
	case s.address.IsValid(), s.port != 0:
		return findingName(code, s.store, s.text())
	default:
		return findingName(code, s.store)
	}
}
