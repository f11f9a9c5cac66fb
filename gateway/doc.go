// Package gateway gives one answer from all Trivet services of a cluster: over gRPC, as HTTP/JSON and as a page.
//
// Promises:
//
//   - A replica that does not answer in time never holds up the others; the answer comes without it and says so in sources.
//     One answer is enough. Only when nobody answers, or not the one replica that has the answer, is there an error, NO_SOURCE,
//     which names whom it asked in vain, and each cause.
//   - However many people watch, the services are asked once per interval, and only while somebody watches. Of Nodes and Leases
//     one stream is kept to each replica of leasesvc, and only while somebody watches, or did a moment ago.
//   - What one replica owns is asked of that one. Lists and watches of Nodes and Leases are those of all replicas, as one; who is
//     missing is named, and a Node that moves between replicas is never told twice, nor told as gone.
//   - Findings are those of the holder of bootstrapsvc's term. One stream is kept, for all who watch; it follows the term, and what
//     ended while nobody told of it is told as ended by the next holder's first bookmark.
//   - HTTP and gRPC are the same service: HTTP requests pass the same interceptors, limits and validation, through an
//     in-memory connection to a gRPC server of their own.
//   - The page is static, loads nothing from elsewhere, and treats every value it shows as text.
//
// Replicas are found through the members they register in etcd. While etcd is away the gateway goes on with the members it
// knew last, and is not ready.
//
// # HTTP
//
//	GET /                  the page
//	GET /v1/status         one status as JSON; 200 with "partial": true while sources are missing, 503 when none answered
//	GET /v1/status:watch   a line per status, {"result": …}; an error is the last line, {"error": …}; ?interval=2s
//	GET /v1/nodes          and /v1/nodes:watch, /v1/nodes/{node}, /v1/nodes/{node}:explain, /v1/zones
//	GET /v1/leases         and /v1/leases:watch, /v1/namespaces/{namespace}/leases, …/leases/{lease}
//	GET /v1/slices         and /v1/slices:watch, /v1/namespaces/{namespace}/slices, …/services/{service}/slices, …/slices:plan,
//	                       …/services/{service}/endpoints/{pod}:explain; ReconcileService, which writes, is served over gRPC only
//	GET /v1/baseline       and /v1/apiservers, /v1/apiservers:watch, /v1/findings, /v1/findings:watch, /v1/repairs, /v1/repairs:plan;
//	                       Audit and ApplyRepair, which work or write, are served over gRPC only
//
// JSON is protobuf's mapping with lowerCamelCase names, every field present, 64-bit numbers as strings. Errors are
// google.rpc.Status with an ErrorInfo, and HTTP's status follows from their code. A query parameter that a path does not take is
// an error.
//
// The HTTP server is read only, takes no request body and speaks no TLS; by default it listens on loopback, and there it answers
// only to the names of this machine, so that a foreign site cannot read it by rebinding its own name. Beyond loopback it belongs
// behind something that terminates TLS and knows its users.
//
// # What it does not do
//
// It writes nothing, anywhere; it holds no term; it keeps no history; it forwards no credentials of its callers. It knows
// the services by their protos only.
package gateway
