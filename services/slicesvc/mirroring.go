package slicesvc

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirrorcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// MirrorLoopName is the name of the loop that mirrors Endpoints. It is off by default.
const MirrorLoopName = "endpointslice-mirroring"

// loopNames returns the loops that --loops can select.
func loopNames() []string { return []string{LoopName, MirrorLoopName} }

// mirrors is the part of the service that exists only while the loop is selected.
type mirrors struct {
	controller *mirrorcontroller.Controller
	services   *slicecontroller.Controller
}

// newMirrors makes the watches watch Endpoints. It needs the controller of Services for their
// cache.
func newMirrors(cfg Config, deps Deps, watches *kube.Watches, services *slicecontroller.Controller, dryRun func(loop string) bool) (*mirrors, error) {
	slices := kube.NewSliceClient(deps.Kube.Slices, mirror.ManagedBy)
	m := &mirrors{services: services}
	var err error
	m.controller, err = mirrorcontroller.New(mirrorcontroller.Config{
		Shards:          cfg.Shards,
		Workers:         cfg.Mirroring.ConcurrentSyncs,
		Limits:          mirror.Limits{PerSubset: cfg.Mirroring.MaxEndpointsPerSubset, Spill: cfg.Mirroring.Spill},
		SliceEventDelay: cfg.Mirroring.UpdatesBatchPeriod,
	}, mirrorcontroller.Deps{
		Writer:    modeWriter{Writer: slices, loop: MirrorLoopName, dryRun: dryRun},
		Reader:    slices,
		Watches:   watches.MirrorInputs(),
		Services:  services,
		Endpoints: watches,
		Written:   m.written,
		Tracer:    deps.Tracer,
		Logger:    deps.Logger,
		Metrics:   deps.Metrics,
		Events:    deps.Kube.Events,
		Decisions: deps.Decisions,
	})
	if err != nil {
		return nil, err
	}
	watches.WatchEndpoints(m.controller)
	return m, nil
}

// written lets the controller of Services delete the slices that a Service had for its selector.
func (m *mirrors) written(key slicecontroller.Key) {
	m.services.Request(key, slicecontroller.ByEndpoints, index.Lazy)
}

func (s *Service) mirrorLoop() loop.Loop {
	return s.withShadow(loop.Loop{
		Name:         MirrorLoopName,
		Doc:          "keeps the EndpointSlices of hand-made Endpoints of Services without a selector",
		Scope:        loop.Leader,
		OffByDefault: true,
		Stall:        stallTimeout,
		Run: func(ctx context.Context, report loop.Report) error {
			held, ok := term.FromContext(ctx)
			if !ok {
				return term.ErrNone
			}
			if s.mirrors == nil {
				return fmt.Errorf("loop %s is not selected", MirrorLoopName)
			}
			if !awaitCaches(ctx, s.watches.EndpointsSynced(), s.watches.Check, report) {
				return nil
			}
			return s.mirrors.controller.RunShard(tracing.With(ctx, attribute.Int64("trivet.epoch", held.Epoch())), held.Shard(), report)
		},
	}, s.compareMirrors)
}

// loopsSelected returns which loops --loops selects.
func loopsSelected(spec []string) (selectors, mirroring bool, err error) {
	selection, err := loop.ParseSelection(loopNames(), spec)
	return selection.Enabled(LoopName, false), selection.Enabled(MirrorLoopName, true), err
}

// objectHandler passes the objects of one set of watches to both controllers. The controller of
// Services has each Service first.
type objectHandler struct {
	*slicecontroller.Controller
	mirrors *mirrorcontroller.Controller
}

var _ kube.Handler = objectHandler{}

// PutService passes a Service to both controllers.
func (h objectHandler) PutService(service *corev1.Service) {
	key := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	before, _ := h.Service(key)
	h.Controller.PutService(service)
	h.mirrors.ServiceChanged(key, before, service)
}

// DeleteService passes a deletion to both controllers.
func (h objectHandler) DeleteService(service *corev1.Service) {
	key := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	before, _ := h.Service(key)
	h.Controller.DeleteService(service)
	h.mirrors.ServiceChanged(key, before, nil)
}

// ObserveSliceMetadata passes the metadata of a slice to both controllers.
func (h objectHandler) ObserveSliceMetadata(meta *metav1.ObjectMeta) (fetch bool) {
	selected := h.Controller.ObserveSliceMetadata(meta)
	mirrored := h.mirrors.ObserveSliceMetadata(meta)
	return selected || mirrored
}

// PutSlice passes a slice to the controller that manages it.
func (h objectHandler) PutSlice(slice *discoveryv1.EndpointSlice) {
	if slice.Labels[discoveryv1.LabelManagedBy] == mirror.ManagedBy {
		h.mirrors.PutSlice(slice)
		return
	}
	h.Controller.PutSlice(slice)
}

// DeleteSlice passes a deletion to both controllers.
func (h objectHandler) DeleteSlice(slice *discoveryv1.EndpointSlice) {
	h.Controller.DeleteSlice(slice)
	h.mirrors.DeleteSlice(slice)
}

// SlicesListed passes a list to both controllers.
func (h objectHandler) SlicesListed(listed map[types.NamespacedName]struct{}, resourceVersion string) {
	h.Controller.SlicesListed(listed, resourceVersion)
	h.mirrors.SlicesListed(listed, resourceVersion)
}
