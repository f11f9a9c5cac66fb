package slicesvc

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// While mirroring only compares, upstream mirrors, and no mirrored slice is written here for which
// the slices of a former selector could wait.
func TestDryRun_OfMirroringDelaysNoCleanUp(t *testing.T) {
	t.Parallel()
	dry := shadow.DefaultConfig(loopNames()...)
	dry.Loops = []string{MirrorLoopName}
	trackers, err := shadow.New(dry, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.CleanUpSelectorless = true
	member := term.Member{Cluster: "test", Service: "slicesvc", ID: "a"}
	service, err := New(cfg, Deps{Member: member, Leadership: termtest.NewCandidate(member, cfg.Shards), Logger: slog.New(slog.DiscardHandler), Shadow: trackers})
	if err != nil {
		t.Fatal(err)
	}
	handler := service.handler()
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1", ResourceVersion: "1"}}
	handler.PutService(web)
	handler.PutSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "2", ResourceVersion: "2", Labels: map[string]string{
			discoveryv1.LabelManagedBy: cfg.ManagedBy, discoveryv1.LabelServiceName: "web",
		}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(web, corev1.SchemeGroupVersion.WithKind("Service"))}},
		AddressType: discoveryv1.AddressTypeIPv4,
	})
	planned, _, err := service.controller.Compared(t.Context(), slicecontroller.Key{Namespace: "shop", Name: "web"})
	if err != nil || len(planned.Plan.Changes) != 1 {
		t.Errorf("planned %v (error %v), want the deletion of the slice of the former selector", planned.Plan.Changes, err)
	}
}
