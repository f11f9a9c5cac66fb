package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

// identities issues the certificates of all processes of this binary's tests. Its methods are safe
// for concurrent use.
type identities struct {
	*worldtest.PKI
	// admin is an administrator of the cluster, peer a server. A peer may read while a
	// kube-apiserver is away.
	admin, peer identity.Files
}

var issued = sync.OnceValues(newIdentities)

// newIdentities writes beside the commands, into a folder that `go test` removes.
func newIdentities() (*identities, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pki, err := worldtest.NewPKI(filepath.Join(filepath.Dir(executable), "certificates"), "trivet")
	if err != nil {
		return nil, err
	}
	admin, err1 := pki.Files("admin", certs.ClientLeaf("admin", "system:masters"))
	peer, err2 := pki.Files("peer", certs.ClientLeaf("trivet:test", certs.ServerGroup))
	return &identities{PKI: pki, admin: admin, peer: peer}, errors.Join(err1, err2)
}

// identitiesOf returns the identities.
func identitiesOf(t *testing.T) *identities {
	t.Helper()
	i, err := issued()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// serverFlags are the flags of a server with its certificate and, in the cluster, the rights of its
// roles in deploy/.
func serverFlags(t *testing.T, cluster *devcluster.Cluster, name string) []string {
	t.Helper()
	shippedRoles.Do(func() {
		errRoles = roles.Apply(context.Background(), cluster.RESTConfig(), deploy.Files(), "base", "components/node-health")
	})
	if errRoles != nil {
		t.Fatal(errRoles)
	}
	i := identitiesOf(t)
	files, err := i.Files(fmt.Sprintf("%s-%d", name, servers.Add(1)), certs.ServerLeaf(name, roles.Namespace, "cluster.local"))
	if err != nil {
		t.Fatal(err)
	}
	user, groups := roles.User(name)
	kubeconfig := strings.TrimSuffix(files.CertFile, ".crt") + ".kubeconfig"
	if err := cluster.WriteKubeconfig(kubeconfig, user, groups...); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--tls-cert-file=" + files.CertFile, "--tls-key-file=" + files.KeyFile, "--client-ca-file=" + files.CAFile,
		"--kubeconfig=" + kubeconfig,
	}
}

var (
	shippedRoles sync.Once
	errRoles     error
	// servers numbers the files of servers.
	servers atomic.Int64
)

// httpClient returns a client that presents the certificate.
func httpClient(files identity.Files) (*http.Client, error) {
	client, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: client.TLS()}}, nil
}

// trivet runs the command line as an administrator, against a gateway.
func trivet(ctx context.Context, t *testing.T, server string, args ...string) *exec.Cmd {
	t.Helper()
	admin := identitiesOf(t).admin
	command := exec.CommandContext(ctx, gobuild.Command(t, "trivet"), append(args, "--server", server)...)
	command.Env = append(os.Environ(), "TRIVET_CA_FILE="+admin.CAFile, "TRIVET_CERT_FILE="+admin.CertFile, "TRIVET_KEY_FILE="+admin.KeyFile)
	return command
}
