package explain

import (
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxNames bounds how many names a sentence lists.
const maxNames = 5

// formatTime formats t in UTC, without the date if it is the date of now.
func formatTime(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05") + " UTC"
	}
	return t.Format("2006-01-02 15:04:05") + " UTC"
}

func joinFamilies(families []discoveryv1.AddressType) string {
	names := make([]string, len(families))
	for i, family := range families {
		names[i] = string(family)
	}
	return strings.Join(names, " and ")
}

func quoted(names []string) string {
	var text []string
	for i, name := range names {
		if i == maxNames {
			text = append(text, "…")
			break
		}
		text = append(text, strconv.Quote(bounded(name)))
	}
	return strings.Join(text, ", ")
}

// clause returns a sentence without its end, to be used within another sentence.
func clause(text string) string {
	return strings.TrimSuffix(bounded(text), ".")
}

// bounded returns text of an object as one short line.
func bounded(text string) string {
	const maxLength = 400
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= maxLength {
		return text
	}
	return strings.ToValidUTF8(text[:maxLength], "") + "…"
}
