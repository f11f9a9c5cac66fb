package bootstrapsvc

import (
	"testing"
	"testing/synctest"
	"time"
)

// A kube-apiserver hangs and its sidecar dies: the leader on another machine finds out.
func TestEndpoints_AFrozenServerWithoutSidecarLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(cfg *EndpointsConfig) { cfg.KeepReady = true }))
		f.start(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.adopted.hang(true)
		f.keys.drop("10.1.0.2")
		time.Sleep(5 * time.Minute)
		f.wantPublished(t, "10.1.0.1")
		f.end(t)
	})
}

// bootstrapsvc starts beside a kube-apiserver that hangs, whose address is published.
func TestEndpoints_AServerThatHangsFromTheStartLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(cfg *EndpointsConfig) { cfg.KeepReady = true }))
		f.publish("10.1.0.1", "10.1.0.2")
		f.keys.put(readyPeer("10.1.0.2"))
		f.prober.hang(true)
		f.start(t)
		time.Sleep(5 * time.Minute)
		f.wantPublished(t, "10.1.0.2")
		f.end(t)
	})
}
