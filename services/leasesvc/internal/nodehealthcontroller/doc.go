// Package nodehealthcontroller runs node health on one replica: one goroutine owns the state of all
// Nodes, workers write.
//
// Every Tick a pass takes in what changed, asks package nodehealth for a plan, and gives steps to
// the workers, the most urgent first. It gives more of them if the workers are fast. A pass never
// waits for Kubernetes. Half of the workers write Nodes only, so no Pod delays them.
//
// Before a Node is marked Unknown its Lease is read again, and its session must not be alive. A
// Node has one write at a time. The answer of kube-apiserver counts at once, before the watch
// delivers it. A failed write is retried with backoff.
//
// All Nodes are watched all the time. A step needs the term of its Node's shard, or the term of
// ZoneShard, or both. A term is given up only after the writes under it have returned. Publisher
// shows readers the result of each pass.
//
// Invariants: no Node is marked Unknown before a self-check has passed. No write begins without its
// terms. Run returns after its workers. Time in which the process did not run counts as no silence:
// the clock stops meanwhile.
package nodehealthcontroller
