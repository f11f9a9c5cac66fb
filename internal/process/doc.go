// Package process runs the server process of every Trivet service: flags, clients of etcd and
// Kubernetes, the gRPC server, the admin server, and the order of start and stop.
//
// A service describes itself in a [Program] and gets its dependencies as [Deps]. Settings have this
// precedence: command line, environment (TRIVET_<FLAG>), the file of --config, defaults. All
// mistakes are reported together, with exit code 64.
//
// Start: both servers listen first, so that /readyz can report what is missing. Connections are
// then retried without a limit. Stop: NOT_SERVING, drain the RPCs, stop the loops, release the
// terms, close the connections, stop the admin server.
//
// Callers are reviewed by the kube-apiserver of --kubeconfig, by a client of their own. A program
// that needs a kube-apiserver for nothing else is ready without one.
//
// A replica whose dependencies are missing or whose loops keep failing reports itself unready to
// its candidate. Package term then moves its terms to ready replicas.
package process
