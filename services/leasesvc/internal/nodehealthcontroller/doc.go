// Package nodehealthcontroller runs node health on one replica: one goroutine owns what is known of all Nodes, a few workers write.
//
// Promise: a pass every Tick takes in what changed, has package nodehealth decide, and gives the workers what they have room
// for, the most urgent first: the more, the faster they get through it. Nothing it does waits for Kubernetes, so a slow write
// delays no other node's declaration while there are workers left, half of which write no pods. A declaration is written only
// after the Lease was read again and found as it was, and while no session of the node has come to life. A node has one write under way at a time; what
// the kube-apiserver answered is known at once, without waiting for the watch. A write that fails is tried again after a pause
// that grows; the others go on.
//
// All Nodes are watched all the time; what is done for one is done under the term of its shard, what is done to its zone under
// that of ZoneShard, and what is both under both. A term is given up only after the writes made under it have returned. What a
// pass comes to is published for readers.
//
// Invariants: nobody is declared before a self-check has passed; no write is begun but under terms that are held; Run returns
// after its workers have.
//
// Time in which the process did not run is not held against the nodes: the clock stands still meanwhile.
package nodehealthcontroller
