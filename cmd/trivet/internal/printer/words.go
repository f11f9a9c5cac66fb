// Package wording is how trivet says numbers and times to people: the same everywhere, short, and without false precision.
package printer

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Count counts things: "1 problem", "2 problems", and with a plural of its own "0 passes".
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

// Age says a duration in its two largest units. A negative one, as clocks that differ make it, is none.
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

// Until says when something is due: "in 8s", "now", and "5s ago" once it has passed.
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

// Since says how long ago a moment was; "-" without one.
func Since(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return Age(now.Sub(at.AsTime()))
}

// Due says when a moment comes, or that it passed; "-" without one.
func Due(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return Until(at.AsTime().Sub(now))
}
