// Package nodeapi implements trivet.node.v1.NodeHealthService from the snapshot that node
// health publishes.
//
// Promise: a handler answers from memory. It answers for the Nodes whose shards this replica holds,
// and names the replica that holds the shard of another Node. Where the loop node-health is off,
// all RPCs fail with LOOP_DISABLED.
package nodeapi
