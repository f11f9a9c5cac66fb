package metricstest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxSeries bounds the series of one metric of one process.
const maxSeries = 3000

// bound limits the values of a label: to these, or to a number of things that callers cannot add.
type bound struct {
	values []string
	of     string // what has a value each, if the values are not listed
	size   int    // of these things, at most
}

func among(values string) bound { return bound{values: strings.Fields(values)} }

func each(of string, size int) bound { return bound{of: of, size: size} }

// bounds has every label, or "metric/label" where a label of one metric differs.
func bounds() map[string]bound {
	const changes = "create update delete"
	zones := each("the zones of the most Nodes, and (other)", 51)
	return map[string]bound{
		"cause": among("silent unanswered late"), "decision": among("allow deny"), "explained": among("false true"), "family": among("IPv4 IPv6"), "first": among("trivet upstream"),
		"directive": among("none move slow_down resync reauth unknown"),
		"grpc_code": each("codes of gRPC", 17), "grpc_method": each("registered methods", 40), "grpc_service": each("determined by grpc_method", 1),
		"grpc_type": each("determined by grpc_method", 1), "health": among("starting alive suspect silent dead"), "identified": among("true false"),
		"kind": each("kinds that the server reads", 12), "loop": each("loops of the server", 8), "operation": among(changes),
		"part": among("authorities certificate"), "priority": among("create renewal transition"),
		"range":  each("ranges of an IP family, and (other)", 17),
		"result": among("success error conflict panic"), "server": among("grpc admin http"), "service": among("leasesvc bootstrapsvc slicesvc gateway"),
		"store": among("ip-addresses node-ports cluster-ips secondary-cluster-ips"), "topology": among("Auto Disabled"),
		"traffic_distribution": among("PreferClose PreferSameZone PreferSameNode"), "use": among("server leasesvc etcd"),
		"verb": among(changes + " get watch patch other none"), "version": each("builds", 1), "zone": zones,

		"apiserver_clusterip_repair_ip_errors_total/type":     among("duplicate full invalid leak outOfRange repair unknown"),
		"apiserver_nodeport_repair_port_errors_total/type":    among("duplicate full leak outOfRange repair unknown"),
		"endpoint_slice_controller_syncs/result":              among("success error stale"),
		"trivet_access_review_cache_hits_total/kind":          among("token access"),
		"trivet_access_review_answers/kind":                   among("token access"),
		"trivet_access_review_answers/result":                 among("allowed denied"),
		"trivet_access_review_duration_seconds/kind":          among("token access"),
		"trivet_access_review_stale_answers_total/kind":       among("token access"),
		"trivet_access_reviews_total/kind":                    among("token access"),
		"trivet_access_reviews_total/result":                  among("allowed denied error"),
		"trivet_agent_endpoint_lease_writes_total/result":     among("beat passthrough change overdue"),
		"trivet_agent_endpoint_request_duration_seconds/verb": among(changes + " get watch patch other"),
		"trivet_agent_endpoint_requests_total/code":           each("HTTP codes that kube-apiserver uses", 15),
		"trivet_agent_endpoint_requests_total/resource":       each("resources that a kubelet uses, none and other", 25),
		"trivet_agent_endpoint_requests_total/verb":           among(changes + " get watch patch other"),
		"trivet_agent_endpoint_upstream_current/server":       each("kube-apiservers", 10),
		"trivet_agent_endpoint_upstream_ready/server":         each("kube-apiservers", 10),
		"trivet_shadow_differences/kind":                      among("content metadata missing unwanted packing condition taint"),
		"trivet_shadow_differences_total/kind":                among("content metadata missing unwanted packing condition taint"),
		"trivet_agent_holders/state":                          among("registered superseded rejected pending"),
		"trivet_agent_kubelet_probes_total/result":            among("answered failed"),
		"trivet_agent_unacknowledged_total/result":            among("renewed failed"),
		"trivet_bootstrap_allocation_findings/code":           among("not-allocated duplicate-owner out-of-range leaked wrong-reference wrong-labels orphan range-mismatch range-full unreadable invalid"),
		"trivet_bootstrap_apiservers/state":                   among("ready not_ready unreadable"),
		"trivet_bootstrap_baseline_reports/reason":            each("reasons of docs/reasons.md", 40),
		"trivet_bootstrap_repair_refusals_total/verb":         among("create relabel delete set clear"),
		"trivet_bootstrap_repair_steps_total/result":          among("done unneeded failed skipped"),
		"trivet_bootstrap_repair_steps_total/verb":            among("create relabel delete set clear"),
		"trivet_bootstrap_writes_total/kind":                  each("kinds of the baseline", 5),
		"trivet_bootstrap_writes_total/result":                among("ok conflict error"),
		"trivet_connections_refused_total/reason":             among("connections address_connections identity_connections handshakes address_handshakes address_rate control_frames address_flood anonymous_connections anonymous_timeout"),
		"trivet_gateway_answers_total/code":                   each("codes of gRPC", 17),
		"trivet_lease_checkpoint_holders_total/result":        among("unreadable foreign less_grace full_grace expired"),
		"trivet_lease_checkpoint_writes_total/verb":           among("put delete"),
		"trivet_lease_forward_beats_total/result":             among("forwarded rejected dropped"),
		"trivet_lease_forward_offered_total/result":           among("accepted rejected"),
		"trivet_lease_heartbeats_total/result":                among("lease_not_found no_leader not_authorized not_leader opened recovered registration_rate_limited renewed repeated superseded too_many_holders too_many_holders_of_identity took_over unknown_class"),
		"trivet_lease_rejected_streams_total/reason":          among("not_authenticated too_many_streams too_many_messages message_too_large too_many_calls_in_flight"),
		"trivet_lease_sessions/state":                         among("alive suspect expired"),
		"trivet_lease_writes_total/reason":                    among("first renewal expired recovered unknown released absent"),
		"trivet_lease_writes_total/result":                    among("success no_owner foreign_holder terminating conflict throttled error"),
		"trivet_lease_writes_total/verb":                      among("none create update delete"),
		"trivet_node_cut_off/from":                            among("kube-apiserver leasesvc"),
		"trivet_node_marking_suspended/cause":                 among("APISERVER_UNREACHABLE APISERVER_DENIED"),
		"trivet_node_writes_total/result":                     among("ok conflict term-over error"),
		"trivet_node_writes_total/what":                       among("remove-no-execute mark-unknown add-no-execute sync-taints pod-unready"),
		"trivet_quota_identities/kind":                        among("address replica user"),
		"trivet_quota_refusals_total/method":                  each("registered methods", 40),
		"trivet_quota_refusals_total/reason":                  among("TOO_MANY_CALLS TOO_MANY_CALLS_IN_FLIGHT MESSAGE_TOO_LARGE"),
		"trivet_slice_watch_reopens_total/cause":              among("late silent"),
		"trivet_taint_eviction_pods/state":                    among("waiting due held"),
		"trivet_taint_eviction_tries_total/result":            among("ok gone withdrawn conflict dry_run error cancelled"),
		"trivet_session_losses_total/reason":                  among("lapsed lease_gone session_lost"),
		"trivet_term_losses_total/reason":                     among("key_gone lapsed lease_gone session_lost"),
		"trivet_term_releases_total/reason":                   among("divided moved returned stopped unready"),
		"trivet_tls_handshakes_failed_total/reason":           among("expired refused_by_peer unknown_authority wrong_certificate"),
		"trivet_tracing_spans_dropped_total/cause":            among("queue_full export_failed"),
		"trivet_watch_reopens_total/cause":                    among("silent unanswered"),
	}
}

func boundOf(metric, label string) (bound, bool) {
	all := bounds()
	if found, ok := all[metric+"/"+label]; ok {
		return found, true
	}
	found, ok := all[label]
	return found, ok
}

// Series is how many series a process has of m at most: the product of the values of its labels.
func Series(m Metric) int {
	series := 1
	for label := range m.Labels {
		if b, known := boundOf(m.Name, label); known {
			series *= max(len(b.values), b.size)
		}
	}
	return series
}

// HasValue reports whether a label of a metric may have a value.
func HasValue(metric, label, value string) bool {
	b, known := boundOf(metric, label)
	return known && (b.values == nil || slices.Contains(b.values, value))
}

// upstreamNames are the names of controllers that Trivet replaces. Dashboards of upstream use them.
var upstreamNames = regexp.MustCompile(`^(grpc_server|node_collector|taint_eviction_controller|endpoint_slice_controller|endpoint_slice_mirroring_controller|apiserver_(nodeport|clusterip)_repair)_`)

var (
	snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	wrongUnit = regexp.MustCompile(`_(ms|us|ns|milliseconds?|microseconds?|nanoseconds?|second|minutes?|hours?|days?|byte|kilobytes?|kib|mib|megabytes?|percent|count|sum|bucket|gauge|counter|histogram|total_total)(_|$)`)
	unit      = regexp.MustCompile(`_(seconds|bytes)(_total)?$`)
)

// Check reports every metric that breaks a naming rule of Prometheus or Kubernetes, and every label
// whose values no table bounds.
func Check(t testing.TB, metrics map[string]Metric) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		m := metrics[name]
		for _, problem := range append(nameProblems(m), labelProblems(m)...) {
			t.Errorf("%s: %s", name, problem)
		}
		t.Logf("%5d series of %s", Series(m), name)
	}
}

func nameProblems(m Metric) (problems []string) {
	if m.Help == "" {
		problems = append(problems, "has no help")
	}
	if upstreamNames.MatchString(m.Name) {
		return problems
	}
	if !strings.HasPrefix(m.Name, "trivet_") || !snakeCase.MatchString(m.Name) {
		problems = append(problems, "is not trivet_ and snake case")
	}
	if isCounter := m.Type == "counter"; isCounter != strings.HasSuffix(m.Name, "_total") {
		problems = append(problems, "_total is the suffix of counters and of nothing else; this is a "+m.Type)
	}
	if found := wrongUnit.FindString(m.Name); found != "" {
		problems = append(problems, fmt.Sprintf("has %q; units are seconds and bytes", found))
	}
	measures := strings.Contains(m.Name, "duration") || strings.Contains(m.Name, "seconds") || strings.Contains(m.Name, "timestamp") || strings.Contains(m.Name, "bytes")
	if measures && !unit.MatchString(m.Name) {
		problems = append(problems, "does not end in its unit")
	}
	for label := range m.Labels {
		if strings.Contains(m.Name, "_by_"+label) {
			problems = append(problems, "repeats its label "+label)
		}
	}
	return problems
}

func labelProblems(m Metric) (problems []string) {
	for _, label := range slices.Sorted(maps.Keys(m.Labels)) {
		b, known := boundOf(m.Name, label)
		if !known {
			problems = append(problems, "no table bounds label "+label)
		}
		if !snakeCase.MatchString(label) || slices.Contains([]string{"le", "quantile", "job", "instance"}, label) {
			problems = append(problems, "label "+label+" is reserved or not snake case")
		}
		for _, value := range m.Labels[label] {
			if b.values != nil && value != "" && !slices.Contains(b.values, value) {
				problems = append(problems, fmt.Sprintf("label %s has %q, which is not in its table", label, value))
			}
		}
		if b.values == nil && len(m.Labels[label]) > b.size {
			problems = append(problems, fmt.Sprintf("label %s has %d values, and its table says %d", label, len(m.Labels[label]), b.size))
		}
	}
	if series := Series(m); series > maxSeries {
		problems = append(problems, fmt.Sprintf("may have %d series, more than %d", series, maxSeries))
	}
	return problems
}
