package slicesvc_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
)

// One zone without a node that says how big it is: there can be no hints, and the
// Service is told so in upstream's words.
func TestCluster_EventsSayWhatBecameOfHints(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.service(func(service *corev1.Service) {
		service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	testkit.Eventually(t, patience, func() error {
		events, err := w.kube.CoreV1().Events(w.namespace).List(w.ctx(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(event corev1.Event) bool {
			return event.Reason == "TopologyAwareHintsDisabled" && event.Source.Component == "endpoint-slice-controller" &&
				event.InvolvedObject.Name == "web" && event.Type == corev1.EventTypeWarning
		}) {
			return fmt.Errorf("events are %v, want that there are no hints", events.Items)
		}
		return nil
	})
}
