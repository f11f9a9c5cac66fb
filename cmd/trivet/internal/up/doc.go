// Package up is `trivet up`: a whole Trivet on one machine, for a first look and for end-to-end tests.
//
// It starts etcd and a kube-apiserver as child processes (or takes a cluster that exists), the four servers inside its
// own process, and a small simulated fleet, and stops all of it in the opposite order. Everything listens on loopback
// and without TLS, as --insecure allows there; what it writes to disk lies in one folder and goes with it, unless the
// folder was named by the caller.
package up
