package main

import "testing"

func TestRequestsIn_EveryMessageCountsAndNoEndOfAStream(t *testing.T) {
	const metrics = `# HELP grpc_server_handled_total Total number of RPCs completed on the server, regardless of success or failure.
# TYPE grpc_server_handled_total counter
grpc_server_handled_total{grpc_code="Canceled",grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"} 27
grpc_server_handled_total{grpc_code="OK",grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 9
# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"} 55
grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 9
grpc_server_msg_received_total_of_another{grpc_method="Txn"} 1000
`
	// 9 transactions, 28 renewals, and 27 ended streams of which each carried at least one renewal.
	if got, err := requestsIn(metrics); got != 37 || err != nil {
		t.Errorf("requestsIn = %v, %v; want 37", got, err)
	}
}

func TestRequestsIn_MissingCounterIsAnError(t *testing.T) {
	if got, err := requestsIn("grpc_server_handled_total{grpc_type=\"bidi_stream\"} 1\n"); err == nil {
		t.Errorf("requestsIn = %v without an error", got)
	}
}
