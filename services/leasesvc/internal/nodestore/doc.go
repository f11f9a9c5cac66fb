// Package nodestore reads Nodes with the Leases and pods that belong to them, and writes what node health decided.
//
// Promise: what is read comes from watches and is stripped to what decisions are made from; a Node is some 15 KiB, what is left
// of it below two, and of a pod there are its names and a word. Only a self-check reads past them. Every write is one patch that is guarded by UID and resourceVersion of the
// object it was decided from, and names nothing but what is to change: conditions of other types, labels with other keys and
// all other fields stay, whoever wrote them. Taints are one list to the kube-apiserver; its version guards the foreign ones in it,
// and no moment has neither the old nor the new one.
//
// The context given to a write must carry the held term, which the fenced client checks.
package nodestore
