package main

import (
	"bytes"
	"testing"
	"time"
)

func TestRow_SaysWhetherTheTargetWasReachedAndWhichProgramIsAhead(t *testing.T) {
	for _, c := range []struct {
		r    row
		want string
		met  bool
	}{
		{r: row{ours: 1, most: 1}, want: "met", met: true},
		{r: row{ours: 1.1, most: 1}, want: "**missed**"},
		{r: row{ours: 2}.than("floor", 1), want: "behind", met: true},
		{r: row{ours: 1}.than("floor", 2), want: "", met: true},
		{r: row{ours: 2, most: 3}.than("upstream", 1), want: "met", met: true},
	} {
		if got := c.r.verdict(); got != c.want || targetsMet([]row{c.r}) != c.met {
			t.Errorf("%+v: verdict %q, met %v; want %q, %v", c.r, got, targetsMet([]row{c.r}), c.want, c.met)
		}
	}
}

func TestPrintTable_OneLineForEachRow(t *testing.T) {
	var out bytes.Buffer
	late := worstOf("dead", []time.Duration{5 * time.Second, 2 * time.Second, 3 * time.Second}, 6*time.Second)
	printTable(&out, []row{late.than("upstream", 20), {what: "memory", ours: 100 << 20, show: mebibytes, whose: "no such thing"}})
	const want = "| what | must reach | bootstrapsvc | beside it | ÷ | |\n|---|---|---|---|---|---|\n" +
		"| dead | ≤ 6.00 s | 5.00 s (worst of 3, median 3.00 s) | upstream: 20.00 s | 0.25 | met |\n" +
		"| memory | – | 100 MiB | no such thing | – |  |\n"
	if out.String() != want {
		t.Errorf("table is\n%s\nwant\n%s", out.String(), want)
	}
}

func TestChoose_ByName(t *testing.T) {
	if all, err := choose(""); err != nil || len(all) != 2 {
		t.Errorf("without a name %d parts, %v", len(all), err)
	}
	if one, err := choose("endpoints"); err != nil || len(one) != 1 || one[0].name != "endpoints" {
		t.Errorf("chosen are %v, %v", one, err)
	}
	if _, err := choose("endpoints,others"); err == nil {
		t.Error("a part that is not there is chosen")
	}
}

func TestBrief_ThreeDigitsOrSo(t *testing.T) {
	for seconds, want := range map[float64]string{12.345: "12.35 s", 0.0123: "12.3 ms", 0.000123: "123 µs"} {
		if got := formatSeconds(seconds); got != want {
			t.Errorf("brief(%v) = %q, want %q", seconds, got, want)
		}
	}
}
