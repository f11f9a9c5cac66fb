package apiservers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// stopWithin is what a stop may take at most, twice the interval of the endpoints, and what a starved machine adds.
const stopWithin = 30 * time.Second

// sidecar is one bootstrapsvc, a process of its own.
type sidecar struct {
	command *exec.Cmd
	exited  chan struct{} // closed once the process is gone
	client  bootstrapv1.BootstrapServiceClient
}

// sidecar starts a bootstrapsvc and returns at once. It dies with the test.
func (p plane) sidecar(kubeconfig string, args ...string) *sidecar {
	t := p.T
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ca, cert, key := p.cluster.EtcdFiles()
	address := freeAddress(t)
	s := &sidecar{exited: make(chan struct{})}
	s.command = exec.Command(self, append([]string{
		"--cluster=" + p.name, "--kubeconfig=" + kubeconfig,
		"--etcd-endpoints=" + strings.Join(p.cluster.EtcdEndpoints(), ","),
		"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + address, "--admin-listen=" + freeAddress(t), "--insecure",
	}, args...)...)
	s.command.Env = append(os.Environ(), sidecarVariable+"=1")
	s.launch(t, logFile(t))
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	s.client = bootstrapv1.NewBootstrapServiceClient(connection)
	return s
}

// logFile takes what one process says; it is shown if the test fails.
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

// launch keeps the thread that starts the process until its end, because Linux sends the parent's death signal when that
// thread dies.
func (s *sidecar) launch(t *testing.T, log *os.File) {
	t.Helper()
	s.command.Stdout, s.command.Stderr = log, log
	s.command.SysProcAttr = dyingWithParent()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.command.Start()
		started <- err
		if err == nil {
			_ = s.command.Wait() // how it ended is what the test has done to it
			close(s.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
}

// kill ends the process as a crash does. Killing what is gone does nothing.
func (s *sidecar) kill() {
	_ = s.command.Process.Kill()
	<-s.exited
}

// stop ends the process in good order.
func (s *sidecar) stop() error {
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop a sidecar: %w", err)
	}
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case <-timer.C:
		s.kill()
		return fmt.Errorf("a sidecar did not end within %v of SIGTERM", stopWithin)
	case <-s.exited:
	}
	if state := s.command.ProcessState; !state.Success() {
		return errors.New("a sidecar that was stopped ended with " + state.String())
	}
	return nil
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
