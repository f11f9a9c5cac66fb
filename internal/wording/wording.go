// Package wording makes texts for people: one that others wrote fits into a message, and each time
// and number looks the same everywhere.
package wording

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Valid replaces what is no UTF-8, which protobuf and kube-apiserver refuse.
func Valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// Clip returns at most the first longest bytes of a text, whole characters of valid UTF-8, with "…"
// for what is left out.
func Clip(text string, longest int) string {
	first := begin(text, longest)
	if len(first) == len(text) {
		return Valid(text)
	}
	return Valid(first) + "…"
}

// begin returns whole characters of at most longest bytes.
func begin(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	for longest > 0 && !utf8.RuneStart(text[longest]) {
		longest--
	}
	return text[:longest]
}

// Line is Clip for a text as one line, with single spaces.
func Line(text string, longest int) string {
	return Clip(strings.Join(strings.Fields(text), " "), longest)
}

// Printable is Clip for a text that is not trusted: what is not printable is replaced.
func Printable(text string, longest int) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, Clip(text, longest))
}

// Clock returns a time in UTC, without the date if that is the date of now.
func Clock(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05") + " UTC"
	}
	return Time(t)
}

// Time returns a time in UTC with its date.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

// Count returns a number of things with their name: "1 pod", "3 pods". The plural has an s.
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// mostListed is how many items a list names.
const mostListed = 5

// List joins the first five of count items, with "…" for the others.
func List(items []string, count int) string {
	first := strings.Join(items[:min(len(items), mostListed)], ", ")
	if count > mostListed {
		first += ", …"
	}
	return first
}

// Quoted is List for texts of others, of each at most the first longest bytes.
func Quoted(texts []string, count, longest int) string {
	quoted := make([]string, 0, mostListed)
	for _, text := range texts[:min(len(texts), mostListed)] {
		quoted = append(quoted, strconv.Quote(begin(text, longest)))
	}
	return List(quoted, count)
}
