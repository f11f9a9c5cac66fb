// Package clusterpool lends running control planes to the test binaries of a run, so that not every
// package starts one.
//
// Pool runs in the program that runs the tests (test/lab/cmd/testrun). It listens on a socket in
// the directory of the run, devcluster.RunDir. Borrow, which testkit calls, connects to it.
//
//   - One test binary has a control plane for itself until its connection ends, so no package sees
//     an object of another package. A crash of the binary ends the connection too.
//   - A control plane is clean when it is lent: etcd has the keys that it had after the start.
//   - A control plane that is broken, or not clean in time, is discarded. The run fails if a server
//     died that the borrower did not stop.
//
// Not restored are etcd's revisions and leases, resourceVersions, and metrics. kube-apiserver's
// authorizer and admission plugins follow its caches within milliseconds.
package clusterpool
