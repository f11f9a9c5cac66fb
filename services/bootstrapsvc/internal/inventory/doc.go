// Package inventory is what Kubernetes knows of allocated addresses and ports: Services, which use them, IPAddress objects,
// which allocate addresses, and ServiceCIDRs, out of which they are taken.
//
// [Inventory.Watch] tells all of them and every change, in the words of package allocation; the objects themselves are not
// kept. [Inventory.Service], [Inventory.Services] and [Inventory.IPAddress] ask the apiserver, never a cache, and answer with
// what a quorum of etcd has: a decision to free something is not worth making from yesterday's answer.
//
// Every write is guarded: a create succeeds only where nothing is, a relabelling only over the resourceVersion that it was
// planned from, a delete only of that UID and resourceVersion. When somebody else was faster, the error wraps [ErrConflict].
// An error wraps [ErrUnavailable] where the apiserver did not answer, answered that it cannot now, or that it is too busy.
//
// The package decides nothing. That writes happen only under a held term is the client's duty, which is fenced.
package inventory
