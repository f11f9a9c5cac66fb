// Package process is the server process that every Trivet service runs in: one set of flags, one way to reach etcd and
// Kubernetes, one gRPC server, one admin server, one order of starting and stopping.
//
// A service says what is special about it in a [Program] and gets the rest as [Deps]. Flags are layered: the command line
// wins over the environment (TRIVET_<FLAG>), which wins over the file named by --config, which wins over the defaults;
// mistakes in all of them are collected and reported together, with exit code 64.
//
// Start: both servers listen first, so that /readyz can say what is missing; then connections are tried for as long as it
// takes. Stop: NOT_SERVING, drain the RPCs, stop the loops, hand over the terms, close the connections, and the admin
// server last.
//
// A replica whose dependencies are missing or whose loops keep failing tells its candidate so, and others get its terms if
// they can do better; see package term.
//
// The package decides nothing about Kubernetes and knows no service.
package process
