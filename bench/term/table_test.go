package main

import (
	"strings"
	"testing"
	"time"
)

func TestQuantile_IsOneOfTheTimes(t *testing.T) {
	var times []time.Duration
	for i := 100; i >= 1; i-- {
		times = append(times, time.Duration(i))
	}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{q: 0, want: 1}, {q: 0.5, want: 50}, {q: 0.99, want: 99}, {q: 1, want: 100}} {
		if got := quantile(times, c.q); got != c.want {
			t.Errorf("quantile %v of 1 to 100 = %d, want %d", c.q, got, c.want)
		}
	}
	if times[0] != 100 {
		t.Error("quantile sorted its argument")
	}
	if got := quantile(times[:10], 0.99); got != 100 {
		t.Errorf("99th percentile of ten = %d, want the largest", got)
	}
}

// good returns a result that meets every target exactly.
func good() *result {
	return &result{
		kills: []time.Duration{slowestFailover}, stops: []time.Duration{slowestHandover},
		joins: []time.Duration{slowestRebalance}, leaves: []time.Duration{1}, gaps: []time.Duration{1},
		rest: map[int]cost{1: {requests: mostRequests}, manyShards: {requests: mostRequests}},
	}
}

func TestCompare_EachTargetCanBeMissedByOursOnly(t *testing.T) {
	for name, spoil := range map[string]func(*result){
		"crash":              func(r *result) { r.kills = append(r.kills, slowestFailover+1) },
		"handover":           func(r *result) { r.stops = append(r.stops, slowestHandover+1) },
		"joins":              func(r *result) { r.joins = append(r.joins, slowestRebalance+1) },
		"at rest, 1 shard":   func(r *result) { r.rest[1] = cost{requests: mostRequests + 0.01} },
		"at rest, 64 shards": func(r *result) { r.rest[manyShards] = cost{requests: mostRequests + 0.01} },
	} {
		spoilt := good()
		spoil(spoilt)
		if rows := compare(map[mechanism]*result{terms: good(), leases: spoilt, elections: spoilt}); !met(rows) {
			t.Errorf("%s: another mechanism's figure counts as ours", name)
		}
		rows := compare(map[mechanism]*result{terms: spoilt, leases: good(), elections: good()})
		var table strings.Builder
		printTable(&table, rows)
		if met(rows) || strings.Count(table.String(), "**missed:**") != 1 {
			t.Errorf("%s: not shown as the only target missed:\n%s", name, table.String())
		}
	}
}
