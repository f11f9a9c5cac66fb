package rpcserver_test

import (
	"context"
	"testing"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// A small unary call with all interceptors.
func BenchmarkServer_UnaryCall(b *testing.B) {
	r := start(b, setup{service: &leases{get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
		return &leasev1.GetLeaseResponse{}, nil
	}}})
	request := validGet()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.client.GetLease(b.Context(), request); err != nil {
			b.Fatal(err)
		}
	}
}
