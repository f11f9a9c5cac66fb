package simtest

import (
	"testing"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// StartManager runs kube-controller-manager, the binary at that path, with those controllers, until
// the test ends or stop is called. It must not end by itself before.
func StartManager(t *testing.T, cluster *devcluster.Cluster, binary, controllers string) (stop func()) {
	t.Helper()
	return StartManagerWith(t, cluster.Kubeconfig(), binary, controllers)
}

// StartManagerWith is StartManager for the cluster of a kubeconfig, with further flags.
func StartManagerWith(t *testing.T, kubeconfig, binary, controllers string, flags ...string) (stop func()) {
	t.Helper()
	args := []string{"--kubeconfig=" + kubeconfig, "--controllers=" + controllers, "--leader-elect=false", "--secure-port=0"}
	return StartChild(t, childprocess.Config{Name: "kube-controller-manager", Path: binary, Args: append(args, flags...)}).Kill
}
