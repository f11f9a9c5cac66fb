package printer

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Count returns a number with its noun: "1 problem", "2 problems", or with a given plural "0
// passes".
func Count(number int, noun string, plural ...string) string {
	switch {
	case number == 1:
		return "1 " + noun
	case len(plural) > 0:
		return fmt.Sprintf("%d %s", number, plural[0])
	default:
		return fmt.Sprintf("%d %ss", number, noun)
	}
}

// Age returns a duration in its two largest units. A negative duration, from clocks that differ, is
// "0s".
func Age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// Until returns the time to a moment: "in 8s", "now" or "5s ago".
func Until(d time.Duration) string {
	switch {
	case d >= time.Second:
		return "in " + Age(d)
	case d <= -time.Second:
		return Age(-d) + " ago"
	default:
		return "now"
	}
}

// Since returns the age of a moment; "-" for nil.
func Since(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return Age(now.Sub(at.AsTime()))
}

// Due returns the time to a moment as [Until] does; "-" for nil.
func Due(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return Until(at.AsTime().Sub(now))
}

// EnumWord returns the value of an API enum in the form of flags and columns: "not-ready" for
// HEALTH_NOT_READY with the prefix "HEALTH_", and "-" for the unspecified value.
func EnumWord(value fmt.Stringer, prefix string) string {
	name := strings.TrimPrefix(value.String(), prefix)
	if name == "UNSPECIFIED" {
		return "-"
	}
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// EnumName returns the API's name of a word of [EnumWord].
func EnumName(word, prefix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(word, "-", "_"))
}

// Counts joins the numbers of words that are not zero, in the order of the words: "3 ready, 1
// silent".
func Counts(numbers map[string]int, words ...string) string {
	var parts []string
	for _, word := range words {
		if numbers[word] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", numbers[word], word))
		}
	}
	return strings.Join(parts, ", ")
}

// Verb returns the verb of a planned change with its mark, and its style.
func Verb(verb statusv1.Change_Verb) (string, Style) {
	word := strings.ToLower(strings.TrimPrefix(verb.String(), "VERB_"))
	switch verb {
	case statusv1.Change_VERB_CREATE:
		return "+ " + word, Success
	case statusv1.Change_VERB_UPDATE:
		return "~ " + word, Warning
	case statusv1.Change_VERB_DELETE:
		return "- " + word, Failure
	default:
		return "? " + word, Normal
	}
}

// Object returns the namespace and name of an object, "shop/web"; empty for nil.
func Object(object *statusv1.ObjectReference) string {
	if namespace := object.GetNamespace(); namespace != "" {
		return namespace + "/" + object.GetName()
	}
	return object.GetName()
}

// ObjectWithKind returns the kind, namespace and name of an object, "Service shop/web"; empty for
// nil.
func ObjectWithKind(object *statusv1.ObjectReference) string {
	return strings.TrimSpace(object.GetKind() + " " + Object(object))
}
