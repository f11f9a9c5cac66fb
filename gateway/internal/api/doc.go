// Package api handles the gateway's RPCs: GatewayService, NodeService, SliceService and
// BootstrapService.
//
// A handler asks the replicas of one service through their API, in one of four ways:
//
//   - the holder of a shard or of the term, by package leader;
//   - every replica, and takes the newest answer (newest.go);
//   - every replica for a page, and merges the pages (list.go);
//   - every replica all the time, or the holder of the term, by package fanin (watch.go).
//
// An error of a replica passes unchanged, with its reason. If no replica answers, or not the one
// that has the answer, the error is NO_SOURCE.
package api
