package baselinecontroller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestEvents_EachWriteIsAnEventAboutItsObject(t *testing.T) {
	t.Parallel()
	kube := fake.NewClientset()
	events := NewEvents(kube)
	change := baseline.Change{
		Verb:   planned.Update,
		Object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", UID: "uid-1"}},
		Reason: baseline.ServiceDrifted, Detail: "type NodePort, want ClusterIP",
	}
	events.Applied(change) // outside of a term, there is none
	stop := events.Start(t.Context())
	defer stop()
	events.Applied(change)
	testkit.Eventually(t, time.Minute, func() error {
		sent, err := kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(sent.Items) != 1 {
			return fmt.Errorf("%d events, want one", len(sent.Items))
		}
		event := sent.Items[0]
		if event.Reason != "BaselineRepaired" || event.InvolvedObject.Kind != "Service" || event.InvolvedObject.Name != "kubernetes" ||
			!strings.Contains(event.Message, "SERVICE_DRIFTED") || !strings.Contains(event.Message, change.Detail) {
			return fmt.Errorf("event = %+v", event)
		}
		return nil
	})
}
