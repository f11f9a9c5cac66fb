// Package abuse attacks a server by raw HTTP/2 and TLS, while agents send heartbeats to it, and
// measures what the agents notice. The server and the attacker are processes of their own; the
// attacker has the lowest priority, because a real one has a machine of its own.
//
// The short form checks that no agent fails and that the server's memory is bounded. The long form,
// `make abuse`, also checks the 99th percentile of the latency.
package abuse
