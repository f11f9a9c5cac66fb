package printer_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"1 problem": printer.Count(1, "problem"), "0 problems": printer.Count(0, "problem"), "2 passes": printer.Count(2, "pass", "passes"),
	} {
		if got != want {
			t.Errorf("Count() = %q, want %q", got, want)
		}
	}
}

func TestAge(t *testing.T) {
	tests := []struct {
		age  time.Duration
		want string
	}{
		{-time.Minute, "0s"}, {999 * time.Millisecond, "0s"}, {59 * time.Second, "59s"}, {time.Minute, "1m0s"}, {time.Hour - 1, "59m59s"},
		{time.Hour + 90*time.Second, "1h1m"}, {50 * time.Hour, "2d2h"},
	}
	for _, test := range tests {
		if got := printer.Age(test.age); got != test.want {
			t.Errorf("Age(%s) = %q, want %q", test.age, got, test.want)
		}
	}
}

func TestUntil(t *testing.T) {
	tests := []struct {
		left time.Duration
		want string
	}{
		{8 * time.Second, "in 8s"}, {time.Second, "in 1s"}, {time.Second - 1, "now"}, {0, "now"}, {1 - time.Second, "now"}, {-time.Second, "1s ago"},
		{-90 * time.Minute, "1h30m ago"},
	}
	for _, test := range tests {
		if got := printer.Until(test.left); got != test.want {
			t.Errorf("Until(%s) = %q, want %q", test.left, got, test.want)
		}
	}
}

func TestSinceAndDue(t *testing.T) {
	noon := time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)
	earlier, later := timestamppb.New(noon.Add(-time.Minute)), timestamppb.New(noon.Add(time.Minute))
	for _, test := range []struct{ got, want string }{
		{printer.Since(noon, earlier), "1m0s"}, {printer.Since(noon, later), "0s"}, {printer.Since(noon, nil), "-"},
		{printer.Due(noon, earlier), "1m0s ago"}, {printer.Due(noon, later), "in 1m0s"}, {printer.Due(noon, nil), "-"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
