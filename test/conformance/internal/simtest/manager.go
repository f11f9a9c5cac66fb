package simtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

// StartManager runs kube-controller-manager, the binary at that path, with those controllers, until
// the test ends or stop is called. It must not end by itself before.
func StartManager(t *testing.T, cluster *devcluster.Cluster, binary, controllers string) (stop func()) {
	t.Helper()
	return StartManagerWith(t, cluster.Kubeconfig(), binary, controllers)
}

// StartManagerWith is StartManager for the cluster of a kubeconfig.
func StartManagerWith(t *testing.T, kubeconfig, binary, controllers string) (stop func()) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "kube-controller-manager.log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary, "--kubeconfig="+kubeconfig,
		"--controllers="+controllers, "--leader-elect=false", "--secure-port=0")
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // it is killed in the end
	}()
	stop = sync.OnceFunc(func() {
		killed := command.Process.Kill()
		<-ended
		if errors.Is(killed, os.ErrProcessDone) {
			t.Error("kube-controller-manager has ended by itself")
		}
		if content, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("kube-controller-manager said:\n%s", content[max(0, len(content)-8<<10):])
		}
		_ = log.Close()
	})
	t.Cleanup(stop)
	return stop
}
