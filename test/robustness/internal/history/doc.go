// Package history is the record of one run: what etcd and the proxies saw, what the gateway
// answered, what the test did, and which faults it injected. It has no I/O and reads no clock.
//
// All times are since the start of the run, by the clock of the test process. Revisions are those
// of etcd, which holds the keys of Trivet and the objects of Kubernetes, so that one number orders
// all writes.
package history
