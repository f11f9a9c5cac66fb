package etcdconn_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// member answers each read as an etcd without keys.
type member struct {
	pb.UnimplementedKVServer
}

func (member) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 1}}, nil
}

// serveMember serves on an address until the returned function is called.
func serveMember(t *testing.T, address string, files identity.Files) (served string, stop func()) {
	t.Helper()
	config, err := files.ServerTLS(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	pb.RegisterKVServer(server, member{})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return listener.Addr().String(), func() {
		server.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}
}

// The authorities come first, then the member's certificate; the client is not restarted.
func TestConnect_AuthorityOfEtcdRotatesUnderTheClient(t *testing.T) {
	before, after := identitytest.NewAuthority(t, "before"), identitytest.NewAuthority(t, "after")
	files := before.Files(t, "client", before)
	address, stop := serveMember(t, "127.0.0.1:0", before.Files(t, "etcd", before, after))
	client, err := etcdconn.Connect(etcdconn.Config{
		Endpoints: []string{"https://" + address}, CAFile: files.CAFile, CertFile: files.CertFile, KeyFile: files.KeyFile,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	read := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := client.Get(ctx, "key"); err != nil {
			t.Errorf("read %s: %v", when, err)
		}
	}
	read("before the rotation")
	identitytest.Replace(t, files.CAFile, identitytest.Bundle(before, after))
	stop()
	_, stop = serveMember(t, address, after.Files(t, "etcd", before, after))
	read("from a member with a certificate of the new authority")
	certificate, key := after.Issue(t, "renewed")
	identitytest.Replace(t, files.CertFile, certificate)
	identitytest.Replace(t, files.KeyFile, key)
	stop()
	_, stop = serveMember(t, address, after.Files(t, "etcd", after))
	defer func() { stop() }()
	read("with a client certificate of the new authority")
}
