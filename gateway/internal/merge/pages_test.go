package merge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
)

// pageOf returns a replica's page after the name in the token.
func pageOf(own []merge.Item, token string, size int) merge.Page {
	var page merge.Page
	for _, item := range own {
		if item.GetName() <= token {
			continue
		}
		if len(page.Items) == size {
			page.Token = page.Items[size-1].GetName()
			break
		}
		page.Items = append(page.Items, item)
	}
	return page
}

// Page sizes change and replicas join between pages; still each item is listed once, in order, and
// no page is too long.
func TestCut_PagesAreTheList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := make([][]merge.Item, rapid.IntRange(1, 5).Draw(t, "replicas"))
		var want []string
		for i := range rapid.IntRange(0, 40).Draw(t, "items") {
			one := item(fmt.Sprintf("n%02d", i), 1, "")
			at := rapid.IntRange(0, len(replicas)-1).Draw(t, "holder")
			replicas[at] = append(replicas[at], one)
			want = append(want, one.GetName())
		}

		var got []string
		var at merge.Position
		for rounds := 0; ; rounds++ {
			if rounds > 400 {
				t.Fatal("the list does not end")
			}
			limit := rapid.IntRange(1, 9).Draw(t, "limit")
			asked := slices.Clone(replicas)
			if rapid.Bool().Draw(t, "a replica joins") {
				asked = append(asked, nil)
			}
			var pages []merge.Page
			for _, own := range asked {
				pages = append(pages, pageOf(own, at.Token, max(1, limit/len(asked))))
			}
			items, next, more := merge.Cut(pages, at, limit)
			if len(items) > limit {
				t.Fatalf("%d items on a page of %d", len(items), limit)
			}
			for _, item := range items {
				got = append(got, item.GetName())
			}
			if !more {
				break
			}
			var err error
			if at, err = merge.ParsePosition(next.Encode("all"), "all"); err != nil {
				t.Fatalf("its own token is rejected: %v", err)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("names on all pages (-want +got):\n%s", diff)
		}
	})
}

func TestCut_EndsWithTheShortestPage(t *testing.T) {
	pages := []merge.Page{
		{Items: []merge.Item{item("a", 0, ""), item("d", 0, "")}, Token: "after d"},
		{Items: []merge.Item{item("b", 0, ""), item("f", 0, "")}, Token: "after f"},
		{Items: []merge.Item{item("c", 0, ""), item("e", 0, "")}},
	}

	items, next, more := merge.Cut(pages, merge.Position{}, 10)

	if diff := cmp.Diff([]merge.Item{item("a", 0, ""), item("b", 0, ""), item("c", 0, ""), item("d", 0, "")}, items, protocmp.Transform()); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if want := (merge.Position{Token: "after d"}); next != want || !more {
		t.Errorf("next = %+v, %v, want %+v", next, more, want)
	}
}

func TestCut_HigherEpochWins(t *testing.T) {
	moved := []merge.Page{{Items: []merge.Item{item("a", 3, "")}}, {Items: []merge.Item{item("a", 5, "")}}}

	items, _, more := merge.Cut(moved, merge.Position{}, 10)

	if diff := cmp.Diff([]merge.Item{item("a", 5, "")}, items, protocmp.Transform()); diff != "" || more {
		t.Errorf("items (-want +got), more = %v:\n%s", more, diff)
	}
}

func TestPage_CheckRejectsWhatNoReplicaReturns(t *testing.T) {
	for name, c := range map[string]struct {
		page merge.Page
		ok   bool
	}{
		"ordered":   {page: merge.Page{Items: []merge.Item{item("a", 0, ""), item("b", 0, "")}}, ok: true},
		"empty":     {ok: true},
		"too large": {page: merge.Page{Items: []merge.Item{item("a", 0, ""), item("b", 0, ""), item("c", 0, "")}}},
		"unordered": {page: merge.Page{Items: []merge.Item{item("b", 0, ""), item("a", 0, "")}}},
		"repeated":  {page: merge.Page{Items: []merge.Item{item("a", 0, ""), item("a", 0, "")}}},
	} {
		if err := c.page.Check(2); (err == nil) != c.ok {
			t.Errorf("%s: Check() = %v, want accepted: %v", name, err, c.ok)
		}
	}
}

func TestParsePosition_RejectsOtherTokens(t *testing.T) {
	cut := merge.Position{Token: "t", After: "nodes/a"}
	for name, token := range map[string]string{
		"noise": "!!", "a mark alone": "p", "another mark alone": "c", "no checksum": "cbm9kZXM.t",
		"other arguments": cut.Encode("others"), "shortened": strings.TrimSuffix(cut.Encode("all"), "t"),
		"extended": cut.Encode("all") + "x",
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := merge.ParsePosition(token, "all"); !errors.Is(err, merge.ErrToken) {
				t.Errorf("ParsePosition(%q) = %+v, %v; want %v", token, p, err, merge.ErrToken)
			}
		})
	}
}

// The API limits tokens to 1024 characters.
func TestEncode_FitsIntoAToken(t *testing.T) {
	name := "namespaces/" + strings.Repeat("n", 63) + "/leases/" + strings.Repeat("l", 253)
	replicas := strings.Repeat("t", (8+len(name)+2)/3*4)

	if token := (merge.Position{Token: replicas, After: name}).Encode("all"); len(token) > 1024 {
		t.Errorf("a token of %d characters, want at most 1024", len(token))
	}
}

func FuzzParsePosition(f *testing.F) {
	f.Add("")
	f.Add("pabc")
	f.Add(merge.Position{Token: "t", After: "nodes/a"}.Encode("all"))
	f.Fuzz(func(t *testing.T, token string) {
		p, err := merge.ParsePosition(token, "all")
		if err != nil || token == "" {
			return
		}
		if again, err := merge.ParsePosition(p.Encode("all"), "all"); err != nil || again != p {
			t.Errorf("%q is %+v, written again %+v, %v", token, p, again, err)
		}
	})
}
