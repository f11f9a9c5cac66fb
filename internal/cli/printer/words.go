package printer

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
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
	return Word(name)
}

// EnumName returns the API's name of a word of [EnumWord].
func EnumName(word, prefix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(word, "-", "_"))
}

// EnumWords returns the words of all values of an enum but the unspecified one, in the order of the
// API.
func EnumWords[E protoreflect.Enum](prefix string) []string {
	var words []string
	var zero E
	values := zero.Descriptor().Values()
	for i := range values.Len() {
		if values.Get(i).Number() != 0 {
			words = append(words, Word(strings.TrimPrefix(string(values.Get(i).Name()), prefix)))
		}
	}
	return words
}

// Word returns an UPPER_SNAKE_CASE name as flags and columns show it.
func Word(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// EnumsOf returns the values of words, and skips words that are no value.
func EnumsOf[E ~int32](words []string, prefix string, values map[string]int32) []E {
	var enums []E
	for _, word := range words {
		if value, known := values[EnumName(word, prefix)]; known {
			enums = append(enums, E(value))
		}
	}
	return enums
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
