package api

import (
	"context"
	"errors"
	"fmt"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
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
	preview, ok := s.cfg.Controller.Preview(key)
	if !ok {
		return nil, toStatus(&serviceNotFoundError{name: request.GetName(), source: source})
	}
	return &slicev1.PlanServiceSlicesResponse{
		Plan:    convertPlan(preview, nil),
		Sources: []*metav1.Source{source},
	}, nil
}

func (s *Server) ReconcileServiceSlices(ctx context.Context, request *slicev1.ReconcileServiceSlicesRequest) (*slicev1.ReconcileServiceSlicesResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	source := s.source(s.leadersNow().of(key))
	reconcile := s.cfg.Controller.Reconcile
	if request.GetValidateOnly() {
		reconcile = s.validate
	}
	result, err := reconcile(ctx, key, request.GetEtag())
	plan := convertPlan(result.Preview, result.Outcomes)
	if err := s.reconcileError(key, source, result.Outcomes, err); err != nil {
		return nil, withPlan(toStatus(err), plan)
	}
	return &slicev1.ReconcileServiceSlicesResponse{Plan: plan, Sources: []*metav1.Source{source}}, nil
}

// validate returns what Reconcile would write, and fails as it would, on any replica.
func (s *Server) validate(_ context.Context, key slicecontroller.Key, fingerprint string) (slicecontroller.Reconciled, error) {
	preview, ok := s.cfg.Controller.Preview(key)
	switch {
	case !ok:
		return slicecontroller.Reconciled{}, slicecontroller.ErrServiceNotFound
	case preview.Unmanaged:
		return slicecontroller.Reconciled{}, slicecontroller.ErrUnmanaged
	case fingerprint != "" && fingerprint != preview.Fingerprint:
		return slicecontroller.Reconciled{}, slicecontroller.ErrPlanChanged
	}
	return slicecontroller.Reconciled{Preview: preview}, nil
}

// reconcileError returns the error of the call after a failed sync. Writes that kube-apiserver
// denies are no error of the call: their outcomes say it.
func (s *Server) reconcileError(key slicecontroller.Key, source *metav1.Source, outcomes []slicecontroller.Outcome, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, slicecontroller.ErrServiceNotFound):
		return &serviceNotFoundError{name: resourceName(key), source: source}
	case errors.Is(err, slicecontroller.ErrUnmanaged):
		state, ok := s.cfg.Controller.State(key)
		if !ok {
			return &serviceNotFoundError{name: resourceName(key), source: source}
		}
		return &unmanagedError{name: resourceName(key), reason: unmanagedText(string(state.Unmanaged))}
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

func convertPlan(preview slicecontroller.Preview, outcomes []slicecontroller.Outcome) *metav1.Plan {
	plan := &metav1.Plan{Etag: preview.Fingerprint, Mode: metav1.Mode_MODE_ENFORCE}
	for i := range preview.Plan.Changes {
		converted := convertChange(&preview.Plan.Changes[i])
		if outcomes != nil {
			setOutcome(converted, outcomes[i])
		}
		plan.Changes = append(plan.Changes, converted)
	}
	for _, node := range preview.MissingNodes {
		plan.IncompleteReasons = append(plan.IncompleteReasons, &metav1.IncompleteReason{
			Reason:  reasonNodeMissing,
			Message: validUTF8(fmt.Sprintf("Node %q does not exist, though Pods of the Service are bound to it.", node)),
			Object:  &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: node},
		})
	}
	if preview.CatchingUp {
		plan.IncompleteReasons = append(plan.IncompleteReasons, &metav1.IncompleteReason{
			Reason:  reasonCatchingUp,
			Message: "This replica began to lead the shard just now and still reads what the previous leader wrote.",
		})
	}
	return plan
}

func convertChange(change *pack.Change) *metav1.Change {
	converted := &metav1.Change{
		Verb: convertVerb(change.Verb),
		Object: &metav1.ObjectReference{
			ApiVersion: "discovery.k8s.io/v1",
			Kind:       "EndpointSlice",
			Namespace:  change.Slice.Namespace,
			Name:       change.Slice.Name,
			Uid:        string(change.Slice.UID),
		},
		Reason:  string(change.Reason),
		Message: validUTF8(change.Message()),
		Outcome: metav1.Change_OUTCOME_PLANNED,
	}
	if change.From != nil {
		converted.BaseVersion = change.From.ResourceVersion
	}
	if change.Verb == pack.Update {
		converted.FieldChanges = fieldChanges(change.From, change.Slice)
	}
	return converted
}

func convertVerb(verb pack.Verb) metav1.Change_Verb {
	switch verb {
	case pack.Create:
		return metav1.Change_VERB_CREATE
	case pack.Update:
		return metav1.Change_VERB_UPDATE
	case pack.Delete:
		return metav1.Change_VERB_DELETE
	default:
		return metav1.Change_VERB_UNSPECIFIED
	}
}

func setOutcome(change *metav1.Change, outcome slicecontroller.Outcome) {
	switch outcome.State {
	case slicecontroller.Skipped:
		change.Outcome = metav1.Change_OUTCOME_SKIPPED
	case slicecontroller.Applied:
		change.Outcome, change.ApplyTime = metav1.Change_OUTCOME_APPLIED, timestamp(outcome.Time)
	case slicecontroller.NotNeeded:
		change.Outcome = metav1.Change_OUTCOME_NOT_NEEDED
	case slicecontroller.Failed:
		change.Outcome, change.Error = metav1.Change_OUTCOME_FAILED, validUTF8(outcome.Err.Error())
	}
}

// unmanagedText says why a Service gets no slices.
func unmanagedText(reason string) string {
	if reason == string(index.ExternalName) {
		return "it is an ExternalName, which stands for a DNS name"
	}
	return "it has no selector, so another controller or a user writes its slices"
}
