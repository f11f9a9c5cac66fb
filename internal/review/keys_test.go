package review_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trivet-dev/trivet/internal/review"
)

// questionOf returns the key of a question with single parts and a list.
func questionOf(keys *review.Keys, owner string, parts, list []string) review.Key {
	question := keys.Question()
	for _, part := range parts {
		question.Add(part)
	}
	question.AddSorted(list)
	if owner == "" {
		return question.Key()
	}
	return question.KeyOf(owner)
}

func TestKeys_NoTwoQuestionsHaveOneKey(t *testing.T) {
	keys, seen := review.NewKeys(), map[review.Key]string{}
	for _, q := range []struct {
		owner       string
		parts, list []string
	}{
		{"", nil, nil},
		{"", []string{""}, nil},
		{"", []string{"ab"}, nil},
		{"", []string{"a", "b"}, nil},
		{"", []string{"", "ab"}, nil},
		{"", []string{"ab", ""}, nil},
		{"", []string{"a"}, []string{"b"}},
		{"", nil, []string{"a", "b"}},
		{"", nil, []string{"ab"}},
		{"ann", []string{"ab"}, nil},
		{"ann", []string{"a", "b"}, nil},
		{"ben", []string{"ab"}, nil},
	} {
		text, key := fmt.Sprintf("%q", q), questionOf(keys, q.owner, q.parts, q.list)
		if former, used := seen[key]; used {
			t.Errorf("%s and %s have one key", former, text)
		}
		seen[key] = text
		if again := questionOf(keys, q.owner, q.parts, q.list); again != key {
			t.Errorf("%s has the keys %x and %x", text, key, again)
		}
		if questionOf(review.NewKeys(), q.owner, q.parts, q.list) == key {
			t.Errorf("%s has one key in two processes", text)
		}
	}
}

func TestKeys_TheOrderOfAListDoesNotMatter(t *testing.T) {
	keys := review.NewKeys()
	list := []string{"c", "a", "b"}
	if questionOf(keys, "ann", nil, list) != questionOf(keys, "ann", nil, []string{"a", "b", "c"}) {
		t.Error("the order of a list changes the key")
	}
	if !slices.Equal(list, []string{"c", "a", "b"}) {
		t.Errorf("the list of the caller is now %q", list)
	}
}

func TestKeys_QuestionsOfOneOwnerShareItsPart(t *testing.T) {
	const ownerBytes = 8
	keys := review.NewKeys()
	a, b := questionOf(keys, "ann", []string{"a"}, nil), questionOf(keys, "ann", []string{"b"}, nil)
	if [ownerBytes]byte(a[:ownerBytes]) != [ownerBytes]byte(b[:ownerBytes]) {
		t.Error("two questions of one owner have two owners")
	}
	if other := questionOf(keys, "ben", []string{"a"}, nil); [ownerBytes]byte(a[:ownerBytes]) == [ownerBytes]byte(other[:ownerBytes]) {
		t.Error("questions of two owners have one owner")
	}
	a, b = questionOf(keys, "", []string{"a"}, nil), questionOf(keys, "", []string{"b"}, nil)
	if [ownerBytes]byte(a[:ownerBytes]) == [ownerBytes]byte(b[:ownerBytes]) {
		t.Error("two questions that are their own owners have one owner")
	}
}
