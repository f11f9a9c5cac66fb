// Package gateway answers for all Trivet services of a cluster: over gRPC, as HTTP/JSON and as a
// page.
//
// Promises:
//
//   - A replica that does not answer in time delays no other answer. The answer comes without it
//     and names it among the sources. Only if no replica answers, or not the one that has the
//     answer, the error is NO_SOURCE. It names each replica that was asked, with the cause.
//   - The services are asked once for any number of watches, and only while there are watches.
//     Streams to replicas stay open a moment longer.
//   - A question about one shard goes to the replica that holds it. Lists and watches of Nodes,
//     Leases and Services merge all replicas and name the missing ones. A Node that moves between
//     replicas is reported as modified.
//   - Findings come from the holder of bootstrapsvc's term. The stream follows the term. A finding
//     that ended between two terms is reported as ended before the bookmark of the next holder.
//   - An HTTP request is a gRPC call: it passes the same interceptors, limits and validation,
//     through an in-memory connection.
//   - The page is static, loads nothing from other servers, and treats each value that it shows as
//     text.
//
// Replicas are found through their member keys in etcd. While etcd is unreachable the gateway uses
// the members that it knew last, and is not ready.
//
// # HTTP
//
//	GET /                  the page
//	GET /v1/status         the status as JSON; 200 with "partial": true if sources are missing, 503 without any source
//	GET /v1/status:watch   a line per status, {"result": …}; an error is the last line, {"error": …}; ?interval=2s
//	GET /v1/nodes          and /v1/nodes:watch, /v1/nodes/{node}, /v1/nodes/{node}:explain, /v1/zones
//	GET /v1/leases         and /v1/leases:watch, /v1/namespaces/{namespace}/leases, …/leases/{lease}
//	GET /v1/slices         and /v1/slices:watch, /v1/namespaces/{namespace}/slices, …/services/{service}/slices, …/slices:plan,
//	                       …/services/{service}/endpoints/{pod}:explain; ReconcileService writes: gRPC only
//	GET /v1/baseline       and /v1/apiservers, /v1/apiservers:watch, /v1/findings, /v1/findings:watch, /v1/repairs, /v1/repairs:plan;
//	                       Audit and ApplyRepair work or write: gRPC only
//
// JSON is protobuf's mapping: lowerCamelCase names, every field present, 64-bit numbers as strings.
// An error is google.rpc.Status with an ErrorInfo; its code gives the HTTP status. A query
// parameter that a path does not have is an error.
//
// The HTTP server is read only, takes no request body and has no TLS. It listens on loopback by
// default. There it answers only to IP addresses and localhost, so that no website can read it by
// rebinding its own name. Beyond loopback it belongs behind a proxy that has TLS and authenticates.
//
// # What it does not do
//
// It writes nothing, holds no term, keeps no history and forwards no credentials. It uses the
// services through their API only.
package gateway
