// Package dropin tells what slicesvc does in the words of the loop it stands in
// for, kube-controller-manager's endpointslice controller: metrics
// endpoint_slice_controller_* and Events of component endpoint-slice-controller.
// Dashboards, alarms and people's habits go on working.
//
// Promise: each name means what it means upstream, for the shards held by this
// replica, so that sums over replicas are those of the cluster; families are
// counted each for itself, of which upstream's gauges count one. An Event tells
// of something that has changed: a Service whose hints stay as they were has none.
//
// It decides nothing. Its methods do not block and are safe for concurrent use.
package dropin
