package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// Reasons why a plan is not complete.
const (
	reasonNodeMissing = "NODE_MISSING"
	reasonCatchingUp  = "CATCHING_UP"
)

func (s *Server) PlanServiceSlices(_ context.Context, request *slicev1.PlanServiceSlicesRequest) (*slicev1.PlanServiceSlicesResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	source := s.source(s.leadersNow().of(key))
	writers, planned, err := s.plansOf(key)
	switch {
	case errors.Is(err, slicecontroller.ErrUnmanaged): // an empty plan
	case errors.Is(err, slicecontroller.ErrServiceNotFound):
		return nil, toStatus(s.serviceNotFound(key, source))
	case err != nil:
		return nil, toStatus(err)
	}
	return &slicev1.PlanServiceSlicesResponse{
		Plan:    convertPlan(reconciled{previews: planned, shadow: allDry(writers)}),
		Sources: []*metav1.Source{source},
	}, nil
}

func (s *Server) ReconcileServiceSlices(ctx context.Context, request *slicev1.ReconcileServiceSlicesRequest) (*slicev1.ReconcileServiceSlicesResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	source := s.source(s.leadersNow().of(key))
	reconcile := s.reconcile
	if request.GetValidateOnly() {
		reconcile = s.validate
	}
	result, err := reconcile(ctx, key, request.GetEtag())
	plan := convertPlan(result)
	if err := s.reconcileError(key, source, slices.Concat(result.outcomes...), err); err != nil {
		return nil, withPlan(toStatus(err), plan)
	}
	return &slicev1.ReconcileServiceSlicesResponse{Plan: plan, Sources: []*metav1.Source{source}}, nil
}

// reconcileError returns the error of the call after a failed sync. Writes that kube-apiserver
// denies are no error of the call: their outcomes say it.
func (s *Server) reconcileError(key slicecontroller.Key, source *metav1.Source, outcomes []slicecontroller.Outcome, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, slicecontroller.ErrServiceNotFound):
		return s.serviceNotFound(key, source)
	case errors.Is(err, slicecontroller.ErrUnmanaged):
		state, ok := s.state(key)
		if !ok {
			return s.serviceNotFound(key, source)
		}
		_, text := state.unmanaged()
		return &unmanagedError{name: resourceName(key), reason: text}
	case errors.Is(err, slicecontroller.ErrShardNotHeld):
		leader := s.leadersNow().of(key).shards[0]
		if leader.Here {
			leader.GRPCAddress = "" // the loop has not begun the term, or has just ended it
		}
		return &notLeaderError{shard: leader.Shard, leaderAddress: leader.GRPCAddress}
	}
	written, denied, other := 0, 0, 0
	for _, outcome := range outcomes {
		switch {
		case outcome.State == slicecontroller.Applied:
			written++
		case outcome.State == slicecontroller.Failed && kube.Denied(outcome.Err):
			denied++
		case outcome.State == slicecontroller.Failed:
			other++
		}
	}
	switch {
	case other > 0:
		return fmt.Errorf("%d of %d changes were written: %w", written, len(outcomes), err)
	case denied > 0:
		return nil
	default:
		return err
	}
}

// convertPlan converts the plans of all writers of a Service into one plan.
func convertPlan(result reconciled) *metav1.Plan {
	plan := &metav1.Plan{Etag: result.previews.etag(), Mode: metav1.Mode_MODE_ENFORCE}
	if result.shadow {
		plan.Mode = metav1.Mode_MODE_SHADOW
	}
	for i := range result.previews {
		preview := &result.previews[i]
		for j := range preview.Plan.Changes {
			converted := convertChange(&preview.Plan.Changes[j])
			switch {
			case result.outcomes == nil:
			case result.outcomes[i] == nil: // an earlier writer failed, or this one is in dry run
				converted.Outcome = metav1.Change_OUTCOME_SKIPPED
			default:
				setOutcome(converted, result.outcomes[i][j])
			}
			plan.Changes = append(plan.Changes, converted)
		}
		plan.IncompleteReasons = append(plan.IncompleteReasons, incompleteReasons(preview)...)
	}
	return plan
}

func incompleteReasons(preview *slicecontroller.Preview) []*metav1.IncompleteReason {
	var reasons []*metav1.IncompleteReason
	for _, node := range preview.MissingNodes {
		reasons = append(reasons, &metav1.IncompleteReason{
			Reason:  reasonNodeMissing,
			Message: wording.Valid(fmt.Sprintf("Node %q does not exist, though Pods of the Service are bound to it.", node)),
			Object:  &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: node},
		})
	}
	if preview.CatchingUp {
		reasons = append(reasons, &metav1.IncompleteReason{
			Reason:  reasonCatchingUp,
			Message: "This replica began to lead the shard just now and still reads what the previous leader wrote.",
		})
	}
	return reasons
}

func convertChange(change *pack.Change) *metav1.Change {
	converted := &metav1.Change{
		Verb: change.Verb.Proto(),
		Object: &metav1.ObjectReference{
			ApiVersion: "discovery.k8s.io/v1",
			Kind:       "EndpointSlice",
			Namespace:  change.Slice.Namespace,
			Name:       change.Slice.Name,
			Uid:        string(change.Slice.UID),
		},
		Reason:  string(change.Reason),
		Message: wording.Valid(change.Message()),
		Outcome: metav1.Change_OUTCOME_PLANNED,
	}
	if change.From != nil {
		converted.BaseVersion = change.From.ResourceVersion
	}
	if change.Verb == planned.Update {
		converted.FieldChanges = fieldChanges(change.From, change.Slice)
	}
	return converted
}

func setOutcome(change *metav1.Change, outcome slicecontroller.Outcome) {
	switch outcome.State {
	case slicecontroller.Skipped:
		change.Outcome = metav1.Change_OUTCOME_SKIPPED
	case slicecontroller.Applied:
		change.Outcome, change.ApplyTime = metav1.Change_OUTCOME_APPLIED, prototime.New(outcome.Time)
	case slicecontroller.NotNeeded:
		change.Outcome = metav1.Change_OUTCOME_NOT_NEEDED
	case slicecontroller.Failed:
		change.Outcome, change.Error = metav1.Change_OUTCOME_FAILED, wording.Valid(outcome.Err.Error())
	}
}
