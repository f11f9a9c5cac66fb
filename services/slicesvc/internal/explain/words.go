package explain

import (
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// shown bounds how many names a sentence lists.
const shown = 5

// at says when something was or will be: by the hour if it is today, as seen from now.
func at(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05") + " UTC"
	}
	return t.Format("2006-01-02 15:04:05") + " UTC"
}

func list(families []discoveryv1.AddressType) string {
	names := make([]string, len(families))
	for i, family := range families {
		names[i] = string(family)
	}
	return strings.Join(names, " and ")
}

func quoted(names []string) string {
	var text []string
	for i, name := range names {
		if i == shown {
			text = append(text, "…")
			break
		}
		text = append(text, strconv.Quote(bounded(name)))
	}
	return strings.Join(text, ", ")
}

// sentence takes the end off a sentence, so that it can stand in another.
func sentence(text string) string {
	return strings.TrimSuffix(bounded(text), ".")
}

// bounded makes one short line of what others wrote.
func bounded(text string) string {
	const enough = 400
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= enough {
		return text
	}
	return strings.ToValidUTF8(text[:enough], "") + "…"
}
