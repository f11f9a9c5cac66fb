// Package abuse attacks a server by raw HTTP/2 and TLS, while agents send heartbeats to it, and
// measures what the agents notice. The server, the agents and the attacker are processes of their
// own.
//
// The short form checks that no agent fails and that the server's memory is bounded. Its attacker
// has the lowest priority.
//
// The long form, `make abuse`, also checks the 99th percentile of the latency. A real attacker has
// a machine of its own, so the server and the agents have one half of the processors and the
// attacker the other. All have a high priority if the user may raise it. A quiet window comes
// before the first attack and after each; the median of these windows is the reference. The row
// "busy neighbour" has no attack: it shows what the processors of one machine share.
package abuse
