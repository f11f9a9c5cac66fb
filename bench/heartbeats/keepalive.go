package main

import (
	"context"
	"errors"

	etcdserverpb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// keepAlive grants a lease and opens a stream of etcd's own heartbeats for it.
func keepAlive(ctx context.Context, connection *grpc.ClientConn, _ string) (func() error, error) {
	const ttl = 600 // seconds, longer than any part
	client := etcdserverpb.NewLeaseClient(connection)
	granted, err := client.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: ttl}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	wire, err := client.LeaseKeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	request := &etcdserverpb.LeaseKeepAliveRequest{ID: granted.ID}
	return func() error {
		if err := wire.Send(request); err != nil {
			return err
		}
		answer, err := wire.Recv()
		if err == nil && answer.TTL <= 0 {
			err = errors.New("the lease is gone")
		}
		return err
	}, nil
}
