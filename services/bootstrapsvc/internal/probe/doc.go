// Package probe asks one kube-apiserver whether it is ready, as pods would have to reach it: over a new connection each
// time, with its certificate verified.
//
// A connection that was opened long ago says nothing about a server that accepts no new ones. Certificates and tokens are
// read anew for each probe, so that rotated files count at once; at one probe per second that costs next to nothing. A
// kubeconfig that switches verification off is not obeyed: whoever answers in place of the server must not become an
// endpoint.
//
// The package decides nothing about what an outcome means.
package probe
