package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// checkOutside calls a server as grpcurl does, with nothing of Trivet's client: it lists the
// services by reflection, and asks for the status.
func checkOutside(t *testing.T, server *running) {
	t.Helper()
	i := identitiesOf(t)
	node, err := i.Files("node-outside", certs.NodeLeaf("outside"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files            identity.Files
		list, readStatus codes.Code
	}{
		"no certificate": {identity.Files{}, codes.Unauthenticated, codes.Unauthenticated},
		"a node":         {node, codes.OK, codes.PermissionDenied},
		"administrator":  {i.admin, codes.OK, codes.OK},
	} {
		conn := dialOutside(t, server.grpc, i.admin.CAFile, c.files)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		services, err := listServices(ctx, conn)
		if grpcstatus.Code(err) != c.list || err == nil && !slices.Contains(services, "trivet.status.v1.StatusService") {
			t.Errorf("%s lists %v (%v), want %v", name, services, err, c.list)
		}
		if _, err := statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{}); grpcstatus.Code(err) != c.readStatus {
			t.Errorf("%s asks for the status: %v, want %v", name, err, c.readStatus)
		}
	}
}

func dialOutside(t *testing.T, address, caFile string, files identity.Files) *grpc.ClientConn {
	t.Helper()
	authorities, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authorities)
	if files.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func listServices(ctx context.Context, conn *grpc.ClientConn) ([]string, error) {
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil && !errors.Is(err, io.EOF) { // after io.EOF Recv has the status
		return nil, err
	}
	reply, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, service := range reply.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	return names, stream.CloseSend()
}
