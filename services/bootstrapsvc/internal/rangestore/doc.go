// Package rangestore reads and writes the ranges that kube-apiserver stores in etcd: a bitmap of
// NodePorts and, in clusters up to 1.33, one bitmap of ClusterIPs for each IP family.
//
// A value is a RangeAllocation as kube-apiserver stores it: four bytes of magic and a protobuf
// envelope around the object, or JSON. Its bitmap is the bytes of a big-endian number, in which bit
// i is the i-th port or address of the range.
//
// # Invariants
//
//   - A value is written in the encoding in which it was read. Everything in it but the bitmap
//     stays byte for byte, above all the text of the range: kube-apiserver allocates nothing from a
//     range with another text than its own flag.
//   - A value that cannot be read, or that would differ after reading and writing, is reported and
//     never written. It may be truncated, or written by a newer version.
//   - A write compares the modification revision that was read, and the guard of the term in its
//     context; without a term it is rejected. kube-apiserver writes in the same way: the later
//     writer reads again, so that neither undoes the other's change.
//   - The package never creates or deletes a key.
//
// The ranges do not say to which cluster they belong. [Store.VerifyCluster] compares an object that
// exists once in each cluster. Until it succeeds, the ranges must be neither trusted nor written.
//
// The package keeps no state and starts no goroutine. All methods block until etcd answers or their
// context ends, and are safe for concurrent use. Their errors wrap [ErrUnavailable] if etcd did not
// answer.
package rangestore
