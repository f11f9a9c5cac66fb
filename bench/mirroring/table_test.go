package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRow_Verdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		rounds [][contenders]float64
		row    row
		want   string
	}{
		{name: "within", rounds: [][contenders]float64{{10, 3}}, row: row{}.within(0.3), want: "met"},
		{name: "above", rounds: [][contenders]float64{{10, 4}}, row: row{}.within(0.3), want: "**missed**"},
		{name: "the median of the ratios counts", rounds: [][contenders]float64{{10, 1}, {100, 90}, {10, 2}}, row: row{}.within(0.3), want: "met"},
		{name: "above and behind", rounds: [][contenders]float64{{10, 11}}, row: row{}.within(1), want: "**missed**, **upstream ahead**"},
		{name: "no target and behind", rounds: [][contenders]float64{{10, 11}}, row: row{}, want: "**upstream ahead**"},
		{name: "nothing to compare with", rounds: [][contenders]float64{{0, 1}}, row: row{}.within(1), want: "**missed**"},
		{name: "not measured", row: row{}.within(1), want: "**missed**"},
		{name: "no write", rounds: [][contenders]float64{{0, 0}, {7, 0}}, row: row{}.atMost(0), want: "met"},
		{name: "one write in one round", rounds: [][contenders]float64{{0, 0}, {7, 1}}, row: row{}.atMost(0), want: "**missed**"},
	} {
		r := c.row
		r.rounds = c.rounds
		if got := r.verdict(); got != c.want || targetsMet([]row{r}) == strings.Contains(c.want, "missed") {
			t.Errorf("%s: verdict %q, targets met %t; want %q", c.name, got, targetsMet([]row{r}), c.want)
		}
	}
}

func TestRows_LeaveOutARoundThatOneContenderLacks(t *testing.T) {
	w := worlds(false)[0]
	m := results{rounds: [][contenders]turn{
		{{flips: &flipping{cpu: 4 * time.Second, writes: 1000, rate: 100}}, {flips: &flipping{cpu: time.Second, writes: 1000, rate: 99}}},
		{{flips: &flipping{cpu: 4 * time.Second, writes: 1000, rate: 100}}, {}},
	}}
	var out bytes.Buffer
	printTable(&out, m.rows(w))
	if text := out.String(); !strings.Contains(text, "| 4.00 s | 1.00 s | 0.25 | – | met |") || strings.Contains(text, "restart") {
		t.Errorf("the table is\n%s", text)
	}
	m.rounds[0][ours].flips.rate = 50
	if targetsMet(m.rows(w)) {
		t.Error("half of the rate is enough")
	}
}

func TestChoose_ByName(t *testing.T) {
	chosen, err := choose(worlds(false), "1x1000")
	if err != nil || !slices.Equal(names(chosen), []string{"1x1000"}) {
		t.Errorf("chosen are %q, %v", names(chosen), err)
	}
	if _, err := choose(worlds(false), "2x2"); err == nil {
		t.Error("a world that is not there is chosen")
	}
}
