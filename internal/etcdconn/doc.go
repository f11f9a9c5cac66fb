// Package etcdconn connects to etcd: flags, TLS, timeouts and logs, the same way for every process.
package etcdconn
