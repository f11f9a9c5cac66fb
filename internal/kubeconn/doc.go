// Package kubeconn connects a process to the kube-apiserver.
//
// [RESTConfig] says how to reach it, [Probe] says whether it answers, and
// [Fence] makes the rule that Kubernetes is written only under a held term
// impossible to forget: the rule is part of the connection. [Prompt] lets whoever
// paces its writes know that they are too many.
//
// # Invariants
//
//   - A client made from a fenced config sends no mutating request unless the
//     request's context carries a term that has not ended, and a request under
//     way is cut off when its term ends.
//   - Nothing here blocks a caller on an apiserver that does not answer:
//     RESTConfig contacts nobody and Probe.Check answers from memory.
//
// # Not here
//
// A fence cannot call back a request that has left: a write that was cut off
// may still happen. Therefore every write is also guarded by the
// resourceVersion it was planned from, a delete by UID and resourceVersion;
// that is the duty of whoever writes. What a GET does beyond reading (exec,
// proxy) is not looked at.
package kubeconn
