package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
)

// Targets.
const (
	slowestFailover  = term.DefaultTTL + time.Second
	slowestHandover  = 200 * time.Millisecond
	slowestRebalance = 2 * time.Second
	mostRequests     = 1.0 // per replica and second
)

// row is one figure of every mechanism.
type row struct {
	what, target            string
	ours, clientGo, etcdOwn string
	missed                  bool
}

// none is shown for a figure that a mechanism does not have.
const none = "–"

// compare returns the rows of the table.
func compare(results map[mechanism]*result) []row {
	ours, clientGo, etcdOwn := results[terms], results[leases], results[elections]
	rows := []row{
		{
			what: "crash: from SIGKILL of the holder to the next body, p50 / worst", target: fmt.Sprintf("worst ≤ %v", slowestFailover),
			ours: worst(ours.kills), clientGo: worst(clientGo.kills), etcdOwn: worst(etcdOwn.kills),
			missed: quantile(ours.kills, 1) > slowestFailover,
		},
		{
			what: "handover: from the stop of the holder to the next body, p50 / p99", target: fmt.Sprintf("p99 ≤ %v", slowestHandover),
			ours: p99(ours.stops), clientGo: p99(clientGo.stops), etcdOwn: p99(etcdOwn.stops),
			missed: quantile(ours.stops, 0.99) > slowestHandover,
		},
		{
			what:   fmt.Sprintf("a replica joins two others that hold %d shards: until all bodies run where they belong, p50 / worst", manyShards),
			target: fmt.Sprintf("worst ≤ %v", slowestRebalance),
			ours:   worst(ours.joins), clientGo: none, etcdOwn: none,
			missed: quantile(ours.joins, 1) > slowestRebalance,
		},
		{
			what: "one of three replicas stops: the same", target: none,
			ours: worst(ours.leaves), clientGo: none, etcdOwn: none,
		},
		{
			what: "no replica acts for a shard that moves in either, p50 / p99", target: none,
			ours: p99(ours.gaps), clientGo: none, etcdOwn: none,
		},
	}
	for _, shards := range []int{1, manyShards} {
		rows = append(rows, restRows(shards, ours.rest[shards], clientGo.rest[shards], etcdOwn.rest[shards])...)
	}
	return rows
}

func restRows(shards int, ours, clientGo, etcdOwn cost) []row {
	held := "1 shard"
	if shards > 1 {
		held = fmt.Sprintf("%d shards", shards)
	}
	requests := func(c cost) string { return fmt.Sprintf("%.2f", c.requests) }
	cpu := func(c cost) string { return fmt.Sprintf("%.2f ms", float64(c.cpu.Microseconds())/1000) }
	return []row{
		{
			what: "requests per replica and second at rest, " + held, target: fmt.Sprintf("≤ %.0f", mostRequests),
			ours: requests(ours), clientGo: requests(clientGo), etcdOwn: requests(etcdOwn),
			missed: ours.requests > mostRequests,
		},
		{
			what: "CPU time per replica and second at rest, " + held, target: none,
			ours: cpu(ours), clientGo: cpu(clientGo), etcdOwn: cpu(etcdOwn),
		},
	}
}

// met reports whether every target is met.
func met(rows []row) bool {
	return !slices.ContainsFunc(rows, func(r row) bool { return r.missed })
}

func printTable(out io.Writer, rows []row) {
	fmt.Fprintf(out, "| what | target | %s | %s | %s |\n|---|---|---|---|---|\n", terms, leases, elections)
	for _, r := range rows {
		if r.missed {
			r.ours = "**missed:** " + r.ours
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", r.what, r.target, r.ours, r.clientGo, r.etcdOwn)
	}
}

// worst formats the median and the largest time.
func worst(times []time.Duration) string {
	return fmt.Sprintf("%s / %s (n = %d)", short(quantile(times, 0.5)), short(quantile(times, 1)), len(times))
}

// p99 formats the median and the 99th percentile.
func p99(times []time.Duration) string {
	return fmt.Sprintf("%s / %s (n = %d)", short(quantile(times, 0.5)), short(quantile(times, 0.99)), len(times))
}

// short formats a duration with about three digits.
func short(d time.Duration) string {
	if d >= time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// quantile returns the smallest time that at least a share q of the times does not exceed.
func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	index := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(index, 0), len(sorted)-1)]
}
