package apiservers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/internal/child"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// stopTimeout is twice the interval of the endpoints loop plus a margin for a loaded machine.
const stopTimeout = 30 * time.Second

// bootstrapClient calls the services of a sidecar that tests need.
type bootstrapClient struct {
	bootstrapv1.BaselineServiceClient
	bootstrapv1.APIServerServiceClient
}

// sidecar is one bootstrapsvc in its own process.
type sidecar struct {
	process *child.Process
	client  bootstrapClient
}

// sidecar starts a bootstrapsvc and returns at once. The test's cleanup kills it.
func (f fixture) sidecar(kubeconfig string, args ...string) *sidecar {
	t := f.T
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ca, cert, key := f.cluster.EtcdFiles()
	address := testkit.FreeAddress(t)
	command := exec.Command(self, append([]string{
		"--cluster=" + f.name, "--kubeconfig=" + kubeconfig,
		"--etcd-endpoints=" + strings.Join(f.cluster.EtcdEndpoints(), ","),
		"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + address, "--admin-listen=127.0.0.1:0", "--insecure",
	}, args...)...)
	command.Env = append(os.Environ(), sidecarVariable+"=1")
	log := logFile(t)
	command.Stdout, command.Stderr = log, log
	process, err := child.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return &sidecar{process: process, client: bootstrapClient{bootstrapv1.NewBaselineServiceClient(connection), bootstrapv1.NewAPIServerServiceClient(connection)}}
}

// logFile takes the output of one process. It is printed if the test fails.
func logFile(t *testing.T) *os.File {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "sidecar-*.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		file.Close()
		if content, err := os.ReadFile(file.Name()); t.Failed() {
			t.Logf("%s, %v:\n%s", filepath.Base(file.Name()), err, content)
		}
	})
	return file
}

// kill ends the process as a crash does. It does nothing if the process has exited.
func (s *sidecar) kill() { s.process.Kill() }

// stop sends SIGTERM and returns an error unless the process exits with code 0.
func (s *sidecar) stop() error {
	if err := s.process.Stop(stopTimeout); err != nil {
		return fmt.Errorf("stop a sidecar: %w", err)
	}
	return nil
}
