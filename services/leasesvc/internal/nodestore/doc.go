// Package nodestore is the one cache of Nodes, their Leases and their Pods in a process, and the
// writes to Nodes and Pods.
//
// Store watches a kind of objects once for all Subscriptions, and only while one of them needs it.
// Cached objects have only the fields that decisions need: a Node of 15 KiB keeps less than two, a
// Pod its names and a few words.
//
// Every write of Writer is one patch or deletion, guarded by UID and resourceVersion of the object
// that it was decided from. A patch names only what changes, so other conditions, labels and fields
// stay. kube-apiserver treats taints as one list: the version guards the taints of other writers in
// it. The context of a write must carry the held term, which the fenced client checks.
//
// Loop is the frame of both controllers: it runs a cache, waits until it is synced, and passes.
package nodestore
