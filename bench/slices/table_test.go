package main

import (
	"slices"
	"strings"
	"testing"
)

func value(f float64) *float64 { return &f }

func TestRow_Verdict(t *testing.T) {
	for _, c := range []struct {
		name                string
		floor, theirs, mine *float64
		share               float64
		of                  contender
		want                string
	}{
		{name: "within", floor: value(10), theirs: value(40), mine: value(12), share: 1.2, of: floor, want: "met"},
		{name: "above", floor: value(10), theirs: value(40), mine: value(13), share: 1.2, of: floor, want: "**missed**"},
		{name: "above and behind", theirs: value(10), mine: value(11), share: 1, of: upstream, want: "**missed**, **upstream ahead**"},
		{name: "allowed, and yet behind", theirs: value(100), mine: value(105), share: 1.1, of: upstream, want: "met, **upstream ahead**"},
		{name: "not measured", theirs: value(10), share: 1, of: upstream, want: "**missed**"},
		{name: "nothing to compare with", mine: value(1), share: 1, of: upstream, want: "**missed**"},
	} {
		r := row{values: [contenders]*float64{floor: c.floor, upstream: c.theirs, ours: c.mine}}.within(c.share, c.of)
		if got := r.verdict(); got != c.want || targetsMet([]row{r}) != strings.HasPrefix(c.want, "met") {
			t.Errorf("%s: verdict %q, targets met %t; want %q", c.name, got, targetsMet([]row{r}), c.want)
		}
	}
	without := row{values: [contenders]*float64{upstream: value(1), ours: value(2)}}
	if got := without.verdict(); got != "**upstream ahead**" || !targetsMet([]row{without}) {
		t.Errorf("a row without target: verdict %q", got)
	}
}

func TestChoose_ByNameInTheTablesOrder(t *testing.T) {
	chosen, err := choose(worlds(config{}), "1000x20,50x100")
	if want := []string{"50x100", "1000x20"}; err != nil || !slices.Equal(names(chosen), want) {
		t.Errorf("chosen are %q, %v; want %q", names(chosen), err, want)
	}
	if _, err := choose(worlds(config{}), "50x100,2x2"); err == nil {
		t.Error("a world that is not there is chosen")
	}
	if all, err := choose(worlds(config{short: true}), ""); err != nil || len(all) != 3 {
		t.Errorf("without names %d worlds, %v", len(all), err)
	}
}
