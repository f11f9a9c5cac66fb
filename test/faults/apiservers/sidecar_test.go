package apiservers

import (
	"time"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
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
	*worldtest.Replica
	client bootstrapClient
}

// sidecar starts a bootstrapsvc and returns at once. The test's cleanup kills it.
func (f fixture) sidecar(kubeconfig string, args ...string) *sidecar {
	f.Helper()
	r := f.world.Add(worldtest.Bootstrapsvc, len(f.world.Replicas), append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
	r.Change(func(c *childprocess.Config) { c.Grace = stopTimeout })
	if err := r.Start(); err != nil {
		f.Fatal(err)
	}
	connection := f.world.Dial(r)
	return &sidecar{Replica: r, client: bootstrapClient{bootstrapv1.NewBaselineServiceClient(connection), bootstrapv1.NewAPIServerServiceClient(connection)}}
}
