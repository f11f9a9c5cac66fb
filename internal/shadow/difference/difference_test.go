package difference_test

import (
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
)

const settle = 30 * time.Second

func at(seconds int) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(seconds) * time.Second)
}

func content(fields ...planned.Field) difference.Difference {
	return difference.Difference{Kind: difference.Content, Object: difference.Object{Kind: "EndpointSlice", Name: "web-1"}, Fields: fields}
}

func ready(address, before, after string) planned.Field {
	return planned.Field{Path: address + ".conditions.ready", Before: before, After: after}
}

func TestSettling_CountsWhatStaysTheSameForTheSettlingTime(t *testing.T) {
	s := difference.Settling{After: settle, Limit: 100}
	wrong := content(ready("10.0.0.1", "true", "false"))
	if counted, waiting := s.Observe(at(0), "services/web", []difference.Difference{wrong}); len(counted) != 0 || !waiting {
		t.Errorf("at first: %v, waiting %v", counted, waiting)
	}
	if counted, _ := s.Observe(at(29), "services/web", []difference.Difference{wrong}); len(counted) != 0 {
		t.Errorf("it counts before the settling time: %v", counted)
	}
	counted, waiting := s.Observe(at(30), "services/web", []difference.Difference{wrong})
	if len(counted) != 1 || waiting || !counted[0].Since.Equal(at(0)) {
		t.Fatalf("after the settling time: %+v, waiting %v; want it since the beginning", counted, waiting)
	}
}

func TestSettling_AChangeSettlesAnew(t *testing.T) {
	for name, next := range map[string][]difference.Difference{
		"gone for a pass":  nil,
		"another value":    {content(ready("10.0.0.1", "true", ""))},
		"another endpoint": {content(ready("10.0.0.2", "true", "false"))},
		"another reason":   {{Kind: difference.Content, Reason: "X", Object: difference.Object{Kind: "EndpointSlice", Name: "web-1"}, Fields: planned.Fields{ready("10.0.0.1", "true", "false")}}},
	} {
		s := difference.Settling{After: settle, Limit: 100}
		first := []difference.Difference{content(ready("10.0.0.1", "true", "false"))}
		s.Observe(at(0), "services/web", first)
		s.Observe(at(20), "services/web", next)
		if counted, _ := s.Observe(at(40), "services/web", first); len(counted) != 0 {
			t.Errorf("%s: it counts: %+v", name, counted)
		}
	}
}

// Endpoints of a Service come and go all the time, and one of them stays wrong.
func TestSettling_ChurnDoesNotHideWhatStaysWrong(t *testing.T) {
	s := difference.Settling{After: settle, Limit: 100}
	var counted []difference.Difference
	for seconds := 0; seconds <= 40; seconds += 5 {
		counted, _ = s.Observe(at(seconds), "services/web", []difference.Difference{content(
			ready("10.0.0.1", "true", "false"), ready("10.0.0.9", at(seconds).String(), "false"),
		)})
	}
	if len(counted) != 1 || len(counted[0].Fields) != 1 || counted[0].Fields[0].Path != "10.0.0.1.conditions.ready" {
		t.Errorf("counted %+v, want the endpoint that stays wrong alone", counted)
	}
}

func TestSettling_DoubtSettlesAllAnew(t *testing.T) {
	s := difference.Settling{After: settle, Limit: 100}
	wrong := []difference.Difference{content(ready("10.0.0.1", "true", "false"))}
	s.Observe(at(0), "services/web", wrong)
	s.Restart()
	if counted, _ := s.Observe(at(60), "services/web", wrong); len(counted) != 0 {
		t.Errorf("it counts right after a doubt: %+v", counted)
	}
}

func TestSettling_MemoryIsBoundedAndSaysSo(t *testing.T) {
	s := difference.Settling{After: settle, Limit: 2}
	three := []difference.Difference{content(ready("a", "1", "2"), ready("b", "1", "2"), ready("c", "1", "2"))}
	s.Observe(at(0), "services/web", three)
	counted, waiting := s.Observe(at(30), "services/web", three)
	if len(counted) != 1 || len(counted[0].Fields) != 2 || !waiting || s.Dropped() != 1 {
		t.Errorf("counted %+v, waiting %v, dropped %d; want two fields and a dropped subject", counted, waiting, s.Dropped())
	}
	s.Retain(func(string) bool { return false })
	if _, waiting := s.Observe(at(31), "services/other", three[:0]); waiting || s.Dropped() != 0 {
		t.Error("forgotten subjects still count")
	}
	if _, waiting := s.Observe(at(31), "services/other", []difference.Difference{content(ready("a", "1", "2"))}); !waiting || s.Dropped() != 0 {
		t.Error("nothing is remembered after all subjects were forgotten")
	}
}

// Annotations of 256 KiB are copied to slices, and a Service has thousands of endpoints.
func TestSettling_KeepsFewFieldsWithShortTexts(t *testing.T) {
	s := difference.Settling{After: settle, Limit: 1000}
	var wrong planned.Fields
	for range 500 {
		wrong = append(wrong, planned.Field{Path: strings.Repeat("p", 1<<10+len(wrong)), Before: strings.Repeat("b", 1<<10), After: strings.Repeat("a", 1<<10)})
	}
	s.Observe(at(0), "services/web", []difference.Difference{content(wrong...)})
	counted, _ := s.Observe(at(30), "services/web", []difference.Difference{content(wrong...)})
	if len(counted) != 1 || counted[0].FieldCount != len(wrong) {
		t.Fatalf("counted %d differences, want one with %d fields", len(counted), len(wrong))
	}
	if kept := counted[0].Fields; cap(kept) > 32 {
		t.Errorf("%d fields stay in memory, want few", cap(kept))
	}
	for _, field := range counted[0].Fields {
		if max(len(field.Path), len(field.Before), len(field.After)) > difference.MaxValue {
			t.Fatalf("a field is kept with %d, %d and %d bytes", len(field.Path), len(field.Before), len(field.After))
		}
	}
}
