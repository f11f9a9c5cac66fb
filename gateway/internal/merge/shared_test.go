package merge_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
)

// shared is a state of which replicas a and b have both told: n1 is red, and a holds it at epoch 5.
func shared() *merge.State[thing] {
	s := merge.NewShared(same)
	s.Expect(noon, []string{"a", "b"})
	for replica, epoch := range map[string]int64{"a": 5, "b": 0} {
		s.Begin(replica, false)
		s.Put(replica, thing{name: "n1", color: "red", epoch: epoch})
		s.Bookmark(noon, replica)
	}
	return s
}

func TestShared_TheHolderKnowsMost(t *testing.T) {
	s := shared()
	reader := s.Join(all)
	check(t, reader, "added n1 red@5", "bookmark")

	s.Put("b", thing{name: "n1", color: "grey", epoch: 0})
	check(t, reader)
	s.Put("a", thing{name: "n1", color: "blue", epoch: 5})
	check(t, reader, "modified n1 blue@5")
	s.Put("b", thing{name: "n1", color: "green", epoch: 9})
	check(t, reader, "modified n1 green@9")
}

// A holder that gives a shard up says so; from then on every word counts until somebody holds it again.
func TestShared_WhoGivesUpIsBelieved(t *testing.T) {
	s := shared()
	reader := s.Join(all)
	check(t, reader, "added n1 red@5", "bookmark")

	s.Put("a", thing{name: "n1", color: "red", epoch: 0})
	s.Put("b", thing{name: "n1", color: "grey", epoch: 0})
	check(t, reader, "modified n1 grey@0")
}

func TestShared_GoneIsBelievedAtOnceOfTheHolderOnly(t *testing.T) {
	s := shared()
	reader := s.Join(all)
	check(t, reader, "added n1 red@5", "bookmark")

	s.Remove(noon, "b", thing{name: "n1"})
	check(t, reader)
	s.Remove(noon, "a", thing{name: "n1", epoch: 5})
	check(t, reader, "removed n1 red@5")
	if next := s.Advance(noon); !next.IsZero() {
		t.Errorf("something is due at %s, want nothing", next)
	}
}

func TestShared_AReplicaThatLeavesTakesNothingWithItThatAnotherTells(t *testing.T) {
	s := shared()
	s.Put("a", thing{name: "n2", color: "red", epoch: 5})
	reader := s.Join(all)
	check(t, reader, "added n1 red@5", "added n2 red@5", "bookmark")

	s.Expect(noon, []string{"b"})
	s.Advance(noon.Add(merge.Hold))
	check(t, reader, "removed n2 red@5", "bookmark")
	s.Put("b", thing{name: "n1", color: "grey"})
	check(t, reader, "modified n1 grey@0")
	s.Remove(noon, "b", thing{name: "n1"})
	check(t, reader, "removed n1 grey@0")
}

func TestShared_WhatIsNotToldAnewIsTheOthersToTell(t *testing.T) {
	s := shared()
	reader := s.Join(all)
	check(t, reader, "added n1 red@5", "bookmark")

	s.Begin("a", false)
	s.Bookmark(noon, "a")
	s.Advance(noon.Add(merge.Hold))
	check(t, reader, "bookmark")
	s.Begin("b", false)
	s.Bookmark(noon, "b")
	s.Advance(noon.Add(2 * merge.Hold))
	check(t, reader, "removed n1 red@5", "bookmark")
}

// Whatever the replicas do, once each has told the truth in full a reader who has kept up knows the truth.
func TestShared_ReadersEndWithTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, replicas := merge.NewShared(same), []string{"a", "b", "c"}
		names := []string{"n1", "n2", "n3", "n4"}
		present, truth := slices.Clone(replicas), map[string]string{}
		s.Expect(noon, present)
		now, epoch := noon, int64(1)
		reader, seen := s.Join(all), map[string]string{}
		take := func() {
			for reader.Pending() {
				events, bookmark := reader.Take(2)
				for _, event := range events {
					_, known := seen[event.Item.name]
					if known != (event.Kind != merge.Added) {
						t.Fatalf("%s: kind %d though known is %v", event.Item.name, event.Kind, known)
					}
					if seen[event.Item.name] = event.Item.color; event.Kind == merge.Removed {
						delete(seen, event.Item.name)
					}
				}
				if len(events) == 0 && !bookmark {
					return
				}
			}
		}
		for step := range rapid.IntRange(0, 60).Draw(t, "steps") {
			replica := rapid.SampledFrom(replicas).Draw(t, "replica")
			name := rapid.SampledFrom(names).Draw(t, "name")
			held := rapid.SampledFrom([]int64{0, epoch}).Draw(t, "epoch")
			now = now.Add(time.Second)
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0, 1:
				truth[name] = fmt.Sprint(step)
				s.Put(replica, thing{name: name, color: truth[name], epoch: held})
			case 2:
				delete(truth, name)
				s.Remove(now, replica, thing{name: name, epoch: held})
			case 3:
				epoch++
			case 4:
				s.Begin(replica, false)
			case 5:
				s.Fail(replica)
			case 6:
				present = slices.DeleteFunc(slices.Clone(present), func(id string) bool { return id == replica })
				s.Expect(now, present)
			case 7:
				if !slices.Contains(present, replica) {
					present = append(present, replica)
				}
				s.Expect(now, present)
				take()
			}
			s.Advance(now)
		}
		s.Expect(now, replicas)
		epoch++
		for i, replica := range replicas {
			s.Begin(replica, false)
			for name, color := range truth {
				s.Put(replica, thing{name: name, color: color, epoch: []int64{0, epoch, 0}[i]})
			}
			s.Bookmark(now, replica)
		}
		s.Advance(now.Add(merge.Hold))
		take()
		if fmt.Sprint(seen) != fmt.Sprint(truth) {
			t.Fatalf("the reader knows %v, want %v", seen, truth)
		}
	})
}
