// Package status is `trivet status`: the state of a cluster's Trivet services as the gateway tells it.
//
// Standard output carries the status in the chosen form and nothing else; progress and errors go to standard error. The
// exit code is 0 when the cluster is healthy, 1 when it is not, also after waiting in vain, and 2 when no status could be
// had. With --watch there is no verdict: it goes on until it is interrupted, through restarts of the gateway.
//
// JSON and YAML are the gateway's answer as /v1/status gives it, field by field. The table is for people and may change.
package status
