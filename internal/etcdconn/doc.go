// Package etcdconn connects to etcd the same way for every process: flags, TLS, reconnection, logs.
//
// A client connects when it is first used and reconnects by itself, so etcd being away is never an error here; it shows in
// the requests themselves. Connections that went silent are found by keepalive pings, and a lost one is tried again within
// seconds: a session that lives for five seconds cannot afford gRPC's default backoff of up to two minutes.
//
// It does not bound requests: etcd's client waits for a connection as long as the context allows, so every request needs a
// context with a deadline. (A timeout added below the client's own retries would make it send a write twice.) It does not
// authenticate by name and password, and it does not discover endpoints.
package etcdconn
