// Package gateway answers for all Trivet services of a cluster: over gRPC, as HTTP/JSON and as a
// page.
//
// Promises:
//
//   - It serves the services' own APIs. Answers have the shape of a replica's; sources name each
//     replica whose part is in them.
//   - A replica that does not answer in time delays no other answer. The answer comes without it
//     and names it in missing, also each shard without a leader. Only if no replica answers, or not
//     the one that has the answer, the error is REPLICAS_UNREACHABLE. It names each replica that
//     was asked, with the cause.
//   - The services are asked once for any number of watches, and only while there are watches.
//     Streams to replicas, and what resume tokens need, stay 30 seconds longer.
//   - A question about one shard goes to the replica that leads it. Lists and watches of Nodes,
//     Leases and Services merge all replicas. When a shard moves, its objects stay as last sent
//     until the next leader has reported them; what the leader does not report is deleted then.
//   - Zones and findings come from their leader, the baseline, kube-apiservers, plans and repairs
//     from any replica. Their watches go on at the next one.
//   - A request that writes goes to the leader, once. It is repeated only if it certainly was not
//     carried out, or at the same replica, which knows it by its request_id.
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
//	GET /                   the page
//	GET /v1/openapi.json    all paths
//	GET /v1/nodes:watch     a line for each event, {"result": …}; an error is the last line, {"error": …}
//	GET /v1/watch           several watches in one response: {"watch": index, "result": …}
//	/clusters/{cluster}/v1  the same paths as /v1, for the cluster of this gateway
//
// A POST has the type application/json. Query parameters and fields that the RPC does not have are
// errors.
//
// JSON is protobuf's mapping: lowerCamelCase names, every field present, 64-bit numbers as strings.
// An error is google.rpc.Status with an ErrorInfo; its code gives the HTTP status.
//
// The HTTP server has the certificates, the callers and the rights of the gRPC server. Only /livez
// and /readyz need no caller. A browser cannot change anything for a page of another site.
//
// With --insecure it serves plain HTTP, on loopback only, and knows no callers. It then takes only
// requests that change nothing: GET, and POST if the access rule of the RPC has the verb get, list
// or watch, or if the body has validateOnly. It answers only to IP addresses and localhost, so that
// no website can read it by rebinding its own name.
//
// # Callers
//
// A call that the gateway makes for a caller names that caller, and the service decides about it:
// its refusal is the answer. Watches and the status are shared. The gateway reads them by its own
// identity, and its server decides about each reader. A replica that does not accept the
// credentials of the gateway counts as one that does not answer.
//
// # What it does not do
//
// It writes nothing itself, leads no shard, keeps no history and forwards no credentials: a service
// believes the gateway's certificate. It uses the services through their API only.
package gateway
