// Package kubeconn connects a process to the kube-apiserver.
//
// [RESTConfig] returns the connection settings, and [Probe] checks whether the server answers.
// [Fence] refuses writes without a held term in the transport. [FailFastOnThrottle] returns
// throttled writes to a caller that limits its own rate.
//
// # Invariants
//
//   - A client made from a fenced config sends no mutating request unless the request's context
//     carries a term that has not ended. A request in flight is cancelled when its term ends.
//   - No call blocks on an apiserver that does not answer: RESTConfig contacts no server, and
//     Probe.Check reads memory.
//
// A fence cannot cancel a request that has left: a write that was cut off may still take effect.
// The fence therefore refuses an update or a patch without a resourceVersion and a delete without a
// UID. It does not know to which shard an object belongs: the body of a shard writes only the
// objects of its shard. The fence does not refuse GET requests with side effects (exec, proxy).
package kubeconn
