// Package rangestore reads and mends the ranges that kube-apiserver keeps in etcd: a bitmap of NodePorts and, in clusters up
// to 1.33, one of ClusterIPs for each family.
//
// A value is a RangeAllocation as kube-apiserver stores it: four bytes of magic and a protobuf envelope around the object, or
// JSON. In its bitmap, which is the bytes of a big-endian number, bit i stands for the i-th of the range.
//
// # Invariants
//
//   - A value is only written back in the encoding that it was read in, and everything in it that is not the bitmap stays
//     byte for byte what it was, the text of the range above all: kube-apiserver allocates nothing from a range whose text is
//     not the one that it was started with.
//   - What cannot be read, or would not be the same after reading and writing, is reported and never written: it may be
//     truncated, and it may come from a newer version.
//   - A write compares the modification revision that was read before it, and the guard of the term that its context carries;
//     without a term it is refused. kube-apiserver writes in the same way: whoever is later reads again, so that neither can
//     undo what the other has done.
//   - A key is never created and never deleted here.
//
// That these are the ranges of the cluster in question cannot be seen in them. [Store.Doubt] compares an object that only this
// cluster has; until it has no doubt, nothing here is worth believing or writing.
//
// # Not here
//
// The package does not know what a bit is used for, and decides nothing. It keeps no state and starts no goroutine; all methods
// block until etcd answers or their context ends, and are safe for concurrent use. Their errors wrap [ErrUnavailable] where
// etcd did not answer.
package rangestore
