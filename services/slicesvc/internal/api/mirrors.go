package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirrorcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// Mirrors is the part of the mirror controller that the handlers use. A key is that of an Endpoints
// object and of its Service. Only Reconcile blocks. The change log of the Controller has the
// changes of mirrored slices as changes of their Services.
type Mirrors interface {
	State(key slicecontroller.Key) (mirrorcontroller.State, bool)
	Limits() mirror.Limits
	Preview(key slicecontroller.Key) (slicecontroller.Preview, bool)
	Reconcile(ctx context.Context, key slicecontroller.Key, fingerprint string) (slicecontroller.Reconciled, error)
	Health() mirrorcontroller.Health
}

// serviceState is what is known of one Service and of its slices of both sources.
type serviceState struct {
	slicecontroller.ServiceState
	// mirror is zero if mirrors is false: the loop is off, or there is no Endpoints object and no
	// mirrored slice.
	mirror  mirrorcontroller.State
	mirrors bool
	limits  mirror.Limits
	// unknown says why the Endpoints are not known yet; nil if they are, or the loop is off.
	unknown error
}

// state returns false if there is no such Service.
func (s *Server) state(key slicecontroller.Key) (serviceState, bool) {
	service, ok := s.cfg.Controller.State(key)
	if !ok {
		return serviceState{}, false
	}
	state := serviceState{ServiceState: service}
	if s.cfg.Mirrors != nil {
		state.limits, state.unknown = s.cfg.Mirrors.Limits(), s.cfg.CheckMirrors()
		state.mirror, state.mirrors = s.cfg.Mirrors.State(key)
	}
	return state, true
}

// serviceNotFound returns the error of a request for a Service that does not exist as of source.
func (s *Server) serviceNotFound(key slicecontroller.Key, source *metav1.Source) error {
	missing := &serviceNotFoundError{name: resourceName(key), source: source}
	if s.cfg.Mirrors != nil {
		state, _ := s.cfg.Mirrors.State(key)
		missing.orphan = state.Reason == mirror.NoService
	}
	return missing
}

// mirrored returns whether slices are written from the Endpoints object.
func (s *serviceState) mirrored() bool { return s.mirrors && s.mirror.Reason == "" }

// handlesMirrors returns whether the mirror controller has something to write or to delete.
func (s *serviceState) handlesMirrors() bool {
	return s.mirrored() || len(s.mirror.Slices) > 0 || s.mirror.History.Failures > 0
}

func (s *serviceState) droppedAddresses() int {
	if !s.mirrored() {
		return 0
	}
	return s.mirror.TooMany + s.mirror.InvalidCount
}

// sliceWriter writes the slices of one source, unless it is in dry run.
type sliceWriter struct {
	reconciler interface {
		Reconcile(ctx context.Context, key slicecontroller.Key, fingerprint string) (slicecontroller.Reconciled, error)
	}
	dryRun bool
}

// allDry returns whether no writer may write.
func allDry(writers []sliceWriter) bool {
	return len(writers) > 0 && !slices.ContainsFunc(writers, func(w sliceWriter) bool { return !w.dryRun })
}

// plansOf returns the controllers that write slices of a Service with their plans, in the order in
// which they write: the one that creates comes before the one that only deletes. It fails with
// ErrServiceNotFound or a cacheNotSyncedError; with ErrUnmanaged and an empty plan if no slices are
// written.
func (s *Server) plansOf(key slicecontroller.Key) ([]sliceWriter, previews, error) {
	state, ok := s.state(key)
	if !ok {
		return nil, nil, slicecontroller.ErrServiceNotFound
	}
	selectors := sliceWriter{reconciler: s.cfg.Controller, dryRun: s.cfg.SelectorDryRun()}
	mirrors := sliceWriter{reconciler: s.cfg.Mirrors, dryRun: s.cfg.MirrorDryRun()}
	own, ok := s.cfg.Controller.Preview(key)
	switch {
	case !ok:
		return nil, nil, slicecontroller.ErrServiceNotFound
	case state.unknown != nil && state.Unmanaged != "":
		return nil, nil, &cacheNotSyncedError{cause: state.unknown}
	case own.Unmanaged && !state.handlesMirrors():
		return nil, previews{own}, slicecontroller.ErrUnmanaged
	case !state.handlesMirrors():
		return []sliceWriter{selectors}, previews{own}, nil
	}
	mirrored, ok := s.cfg.Mirrors.Preview(key)
	switch {
	case !ok:
		return nil, nil, &cacheNotSyncedError{cause: errContentUnread}
	case own.Unmanaged:
		return []sliceWriter{mirrors}, previews{mirrored}, nil
	case state.Unmanaged == "":
		return []sliceWriter{selectors, mirrors}, previews{own, mirrored}, nil
	default:
		return []sliceWriter{mirrors, selectors}, previews{mirrored, own}, nil
	}
}

// previews are the plans of the writers of one Service, in the order in which they are written.
type previews []slicecontroller.Preview

// errContentUnread is why there is no plan of an object that has just begun to be mirrored, or that
// is gone.
var errContentUnread = errors.New("the content of the Endpoints object is being read")

// etagSeparator is in no fingerprint.
const etagSeparator = "-"

// etag covers the plans of all writers.
func (p previews) etag() string {
	fingerprints := make([]string, len(p))
	for i := range p {
		fingerprints[i] = p[i].Fingerprint
	}
	return strings.Join(fingerprints, etagSeparator)
}

// reconciled is what came of the plans of the writers of one Service.
type reconciled struct {
	previews previews
	// shadow says that all writers are in dry run.
	shadow bool
	// outcomes has the outcomes of the changes of each preview; nil for one that was not tried.
	outcomes [][]slicecontroller.Outcome
}

// reconcile lets each writer that is not in dry run write its plan, up to the first that fails. It
// fails with errDryRun if there is none. The etag is that of all
// plans, and empty for any. It fails with ErrPlanChanged only if nothing was written.
func (s *Server) reconcile(ctx context.Context, key slicecontroller.Key, etag string) (reconciled, error) {
	writers, planned, err := s.plansOf(key)
	if err != nil {
		return reconciled{}, err
	}
	if allDry(writers) {
		return reconciled{}, errDryRun
	}
	if len(writers) > 1 && etag != "" { // no writer alone can tell whether the whole plan is the same
		switch {
		case !s.leadersNow().of(key).shards[0].Here:
			return reconciled{}, slicecontroller.ErrShardNotHeld
		case etag != planned.etag():
			return reconciled{}, slicecontroller.ErrPlanChanged
		}
	}
	fingerprints := make([]string, len(writers))
	if etag != "" {
		fingerprints = strings.SplitN(etag, etagSeparator, len(writers))
	}
	result := reconciled{previews: planned, outcomes: make([][]slicecontroller.Outcome, len(writers))}
	for i, writer := range writers {
		if writer.dryRun {
			continue
		}
		if len(writers) > 1 && etag != "" && len(planned[i].Plan.Changes) == 0 {
			result.outcomes[i] = []slicecontroller.Outcome{} // the writes of another may give it changes, which are not of this etag
			continue
		}
		part, err := writer.reconciler.Reconcile(ctx, key, fingerprints[i])
		if err == nil || part.Outcomes != nil {
			result.previews[i], result.outcomes[i] = part.Preview, part.Outcomes
		}
		switch {
		case err == nil:
		case i > 0 && errors.Is(err, slicecontroller.ErrPlanChanged):
			return result, fmt.Errorf("the plan of the remaining slices has changed meanwhile: %w", kube.ErrConflict)
		case i == 0 && part.Outcomes == nil:
			return reconciled{}, err
		default:
			return result, err
		}
	}
	return result, nil
}

// validate returns what reconcile would write, and fails as it would, on any replica.
func (s *Server) validate(_ context.Context, key slicecontroller.Key, etag string) (reconciled, error) {
	writers, planned, err := s.plansOf(key)
	if err != nil {
		return reconciled{}, err
	}
	if etag != "" && etag != planned.etag() {
		return reconciled{}, slicecontroller.ErrPlanChanged
	}
	return reconciled{previews: planned, shadow: allDry(writers)}, nil
}
