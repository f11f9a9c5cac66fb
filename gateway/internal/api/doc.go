// Package api handles the gateway's RPCs: GatewayService, NodeService, SliceService and
// BootstrapService.
//
// The status asks every replica of every service, by package fanout, and merges the answers. The
// other handlers ask the replicas of one service, in one of four ways:
//
//   - a Get asks the holder of the shard or of the term, by package leader (service.go);
//   - a Get of slices asks every replica, and takes the newest answer (newest.go);
//   - a List asks every replica for a page, and merges the pages (list.go);
//   - a Watch reads a fanin.Hub, which follows every replica or the holder of the term (watch.go).
//
// An error of a replica passes unchanged, with its reason. If no replica answers, or not the one
// that has the answer, the error is NO_SOURCE.
package api
