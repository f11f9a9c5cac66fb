// Package etcdconn returns etcd clients for every process: flags, TLS, reconnection, logs.
//
// A client connects at its first request and reconnects by itself. An unreachable etcd is an error
// of the requests, not of this package. Keepalive pings detect silent connections. A lost
// connection is retried within seconds, because sessions have a TTL of five seconds and gRPC's
// default backoff is up to two minutes.
//
// Each request needs a context with a deadline, because etcd's client waits for a connection as
// long as the context allows. (A timeout below the client's own retries would send a write twice.)
// The package supports no password authentication and no discovery.
package etcdconn
