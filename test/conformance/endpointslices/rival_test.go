package endpointslices

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
)

// The endpointslice controller of kube-controller-manager runs beside slicesvc by mistake, and its
// watch of Pods is silent. So it puts each deleted Pod back into the slices that it sees changed. A
// removal reaches the slices nevertheless, and the contention is shown.
func TestManager_ARivalWithOldPodsWithholdsNoRemoval(t *testing.T) {
	s := newStage(t)
	s.manage(withoutSlices)
	s.serve()
	s.namespace("shop")
	web := s.deploy("shop", "web", 6)
	s.eventually(func() error { return web.served(6) })

	proxy := faultproxy.NewKube(t, s.cluster.RESTConfig())
	stopRival := simtest.StartManagerWith(t, proxy.Kubeconfig(t), *arguments.manager, "endpointslice-controller")
	for _, resource := range []string{"pods", "services", "nodes", "endpointslices"} {
		s.eventually(func() error {
			if proxy.OpenWatches(faultproxy.Resource(resource, "watch")) == 0 {
				return fmt.Errorf("the rival does not watch %s yet", resource)
			}
			return nil
		})
	}
	s.expectQuiet() // it agrees as long as it sees the same
	proxy.HoldEvents(faultproxy.Resource("pods", "watch"))

	for replicas := 5; replicas >= 2; replicas-- {
		web.scale(replicas)
		s.eventually(func() error { return web.served(replicas) })
	}
	s.eventually(func() error {
		if !slices.ContainsFunc(web.slices(), writtenByManager) {
			return errors.New("the rival has written no slice")
		}
		events, err := s.kube.CoreV1().Events("shop").List(s.ctx(), metav1.ListOptions{FieldSelector: "reason=EndpointSlicesContended"})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("no Event about the contention")
		}
		return err
	})
	web.scale(1)
	s.eventually(func() error { return web.served(1) })
	// The rival reacts after a second, slicesvc within a second.
	exact, samples := 0, 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if samples++; len(endpointsOf(web.slices())) == 1 {
			exact++
		}
	}
	t.Logf("the slices were exact in %d of %d samples", exact, samples)
	if exact*3 < samples {
		t.Errorf("the slices were exact in %d of %d samples, want a third at least", exact, samples)
	}

	stopRival()
	s.eventually(func() error { return web.served(1) })
	s.expectQuiet()
	if got := strings.Join(endpointsOf(web.slices()), ", "); got == "" {
		t.Error("no endpoint is left")
	}
}
