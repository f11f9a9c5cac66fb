package voice

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type named struct {
	name  string
	value int
}

// reading is a reader and what it believes.
type reading struct {
	share *share[named]
	seen  map[string]int
}

// look takes what there is to tell; a contradiction fails the test.
func (r *reading) look(t *rapid.T, s *state[named]) {
	t.Helper()
	events, _ := s.take(r.share)
	for _, event := range events {
		_, known := r.seen[event.Item.name]
		if event.Kind != Added && !known {
			t.Fatalf("%+v, though it was never told", event)
		}
		if event.Kind == Removed {
			delete(r.seen, event.Item.name)
		} else {
			r.seen[event.Item.name] = event.Item.value
		}
	}
}

// ahead is what the reader would believe after a look.
func (r *reading) ahead(t *rapid.T, s *state[named]) map[string]int {
	t.Helper()
	share := *r.share
	share.rounds = maps.Clone(share.rounds)
	later := &reading{share: &share, seen: maps.Clone(r.seen)}
	later.look(t, s)
	return later.seen
}

// Whatever is told, by however many voices, and however seldom a reader looks: what it is told adds up, and where the present voice
// has told everything, it ends with what that one knows. What is gone is remembered for nobody.
func TestState_ReadersEndWithWhatThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newState[named]()
		truth := map[string]int{} // as the present voice knows it
		var readers []*reading
		value := 0
		put := func(name string) {
			value++
			truth[name] = value
			s.put(name, named{name: name, value: value})
		}
		name, reader := rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.IntRange(0, 3)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) { put(name.Draw(t, "name")) },
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				delete(truth, n)
				s.remove(n, named{name: n})
			},
			"another voice": func(t *rapid.T) {
				s.begin()
				for _, n := range []string{"a", "b", "c", "d"} {
					delete(truth, n)
					if rapid.Bool().Draw(t, "it tells of "+n) {
						put(n)
					}
				}
				if rapid.Bool().Draw(t, "it tells to the end") {
					s.bookmark(func(last named) named { return named{name: last.name} })
				}
			},
			"nobody": func(*rapid.T) { s.fail(errors.New("nobody speaks")) },
			"join": func(t *rapid.T) {
				if len(readers) < 4 {
					readers = append(readers, &reading{share: s.join(), seen: map[string]int{}})
				}
			},
			"leave": func(t *rapid.T) {
				if i := reader.Draw(t, "reader"); i < len(readers) {
					s.leave(readers[i].share)
					readers = append(readers[:i], readers[i+1:]...)
				}
			},
			"look": func(t *rapid.T) {
				if i := reader.Draw(t, "reader"); i < len(readers) {
					readers[i].look(t, s)
				}
			},
			"": func(t *rapid.T) {
				for i, r := range readers {
					if diff := cmp.Diff(truth, r.ahead(t, s)); s.heard && diff != "" {
						t.Fatalf("reader %d would end (-truth +reader):\n%s", i, diff)
					}
				}
				if len(readers) == 0 {
					s.forget()
				}
				gone := 0
				for _, known := range s.items {
					if known.gone {
						gone++
					}
				}
				if gone != s.gone || len(readers) == 0 && gone > 0 {
					t.Fatalf("%d items that are gone are remembered by count, %d in truth, for %d readers", s.gone, gone, len(readers))
				}
			},
		})
	})
}
