package shadowapi_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shadowapi"
	"github.com/trivet-dev/trivet/internal/term"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
)

// A loop that hangs does not compare, whatever its last pass found.
func TestListDifferences_AnOldPassDeterminesNothing(t *testing.T) {
	for _, c := range []struct {
		age        time.Duration
		determined bool
	}{{time.Minute, true}, {10 * time.Minute, false}} {
		cfg := shadow.DefaultConfig("endpointslices")
		cfg.Loops = []string{"endpointslices"}
		trackers, err := shadow.New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := time.Now().Add(-c.age)
		for _, at := range []time.Time{ended.Add(-time.Hour), ended} {
			trackers.Tracker("endpointslices").Passed(at, 10, 0, func(string) bool { return true })
		}
		answer, err := shadowapi.New(term.Member{Service: "slicesvc", ID: "a"}, trackers, nil, slog.New(slog.DiscardHandler)).ListDifferences(t.Context(), &shadowv1.ListDifferencesRequest{})
		if err != nil || len(answer.GetComparisons()) != 1 {
			t.Fatalf("answer %v, error %v", answer, err)
		}
		if why := answer.GetComparisons()[0].GetUndetermined(); (why == "") != c.determined {
			t.Errorf("after a pass %s ago: undetermined = %q, want determined = %v", c.age, why, c.determined)
		}
	}
}
