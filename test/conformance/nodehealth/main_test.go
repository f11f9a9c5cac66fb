package nodehealth

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/testkit"
)

// options are the arguments of the test binary.
type options struct {
	manager *string
	quiet   *time.Duration
}

var arguments = options{
	manager: flag.String("manager", "", "path of kube-controller-manager; without it nothing is tested"),
	quiet:   flag.Duration("quiet", time.Minute, "for how long nothing may change once all has come to rest"),
}

func TestMain(m *testing.M) { testkit.Main(m) }

// requireManager skips the test where there is no kube-controller-manager.
func requireManager(t *testing.T) {
	t.Helper()
	if *arguments.manager == "" {
		t.Skip("needs -manager=path of kube-controller-manager: run `make conformance`")
	}
}

// startManager runs kube-controller-manager with all its controllers but the one that leasesvc replaces, until the test ends.
func startManager(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "kube-controller-manager.log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(*arguments.manager, "--kubeconfig="+cluster.Kubeconfig(),
		"--controllers=*,-node-lifecycle-controller", "--leader-elect=false", "--secure-port=0")
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() {
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
}
