package damage

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Two installations repair one cluster concurrently with kube-apiserver's own repairers. They have
// no common election, so only the guards of their writes prevent violations.
func TestConcurrency_TwoInstallationsViolateNoRule(t *testing.T) {
	inj := newInjector(t)
	var recorders []*findingRecorder
	for _, name := range []string{"installation-one", "installation-two"} {
		replica := startReplica(t, replicaConfig{name: name})
		replica.waitForAudit(t)
		recorders = append(recorders, recordFindings(t, replica))
	}
	load := startChurn(t, inj.kube, testkit.Namespace(t, inj.kube), *services/4)

	damages, expected := map[string]damage{}, map[subject]bool{}
	for name, inject := range damageKinds() {
		injected := inject(inj)
		if injected.outcome == needsDecision {
			injected.resolve()
			for _, text := range injected.used {
				expected[subject{code: "NOT_ALLOCATED", store: injected.store, text: text}] = true
			}
		}
		damages[name], expected[injected.subject], expected[injected.alternative] = injected, true, true
	}
	load.end(t)
	for _, injected := range damages {
		testkit.Eventually(t, waitTimeout, func() error { return checkAllocated(inj, injected.used) })
	}
	checkAllocator(t, inj, damages)
	for _, recorder := range recorders {
		testkit.Eventually(t, waitTimeout, func() error { return recorder.checkOpen(nil) })
		recorder.checkOpenings(t, inj.observer, expected)
	}
	testkit.Eventually(t, waitTimeout, inj.observer.checkLeaks)
	inj.observer.checkViolations(t, func(v oracle.Violation) bool { return v.ReallocatedAt > 0 && isFreedByRepair(damages, v.Subject) })
}

// Concurrent calls apply one plan at the leader, and one call applies it at another replica.
func TestConcurrency_PlanIsAppliedOnce(t *testing.T) {
	inj := newInjector(t)
	leader, other := startTwo(t, replicaConfig{auto: bootstrapsvc.AutoRepairOff})
	used, again := injectFour(inj)
	plan := waitForPlan(t, leader, 4, again)

	const callers = 8
	answers, problems := make([]*bootstrapv1.ApplyRepairPlanResponse, callers), make([]error, callers)
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			answers[i], problems[i] = leader.ApplyRepairPlan(t.Context(), applyOf(plan))
		})
	}
	calling.Wait()
	if _, err := other.ApplyRepairPlan(t.Context(), applyOf(plan)); !isNotLeader(err) {
		t.Errorf("a replica that does not lead returns %v, want NOT_LEADER or NO_LEADER", err)
	}
	final, err := leader.ApplyRepairPlan(t.Context(), applyOf(plan))
	if err != nil || !hasSucceeded(final.GetRepair()) {
		t.Fatalf("apply again: %v, %v, want the repair that has succeeded", final, err)
	}
	for i, answer := range answers {
		if err := checkAnswer(answer, problems[i], final); err != nil {
			t.Errorf("caller %d: %v", i, err)
		}
	}
	checkRepaired(t, inj, leader, used)
	checkRecordedOnce(t, leader, final.GetRepair())
	inj.observer.checkViolations(t, nil)
}

func isNotLeader(err error) bool {
	reason := rpcerror.ReasonOf(err)
	return reason == rpcerror.NotLeaderReason || reason == rpcerror.NoLeaderReason
}

// checkAnswer returns an error unless a caller got the repair, or ABORTED because another call
// applies it.
func checkAnswer(answer *bootstrapv1.ApplyRepairPlanResponse, err error, want *bootstrapv1.ApplyRepairPlanResponse) error {
	switch {
	case status.Code(err) == codes.Aborted:
		return nil
	case err != nil:
		return err
	case answer.GetRepair().GetName() != want.GetRepair().GetName():
		return fmt.Errorf("got %s, want %s", answer.GetRepair().GetName(), want.GetRepair().GetName())
	case hasSucceeded(answer.GetRepair()) && !proto.Equal(answer.GetRepair(), want.GetRepair()):
		return errors.New("a repair changed after its end")
	}
	return nil
}

// The state changes between plan and apply: the replica must refuse the whole plan once its watch
// has told it, and must write nothing before.
func TestConcurrency_OutdatedPlanIsRefused(t *testing.T) {
	inj := newInjector(t)
	replica := startReplica(t, replicaConfig{auto: bootstrapsvc.AutoRepairOff})
	replica.waitForAudit(t)
	for _, isTold := range []bool{true, false} {
		lost := inj.createService(plain)
		again := func() {
			if inj.hasAddress(lost.Spec.ClusterIP) {
				inj.deleteAddress(lost.Spec.ClusterIP)
			}
		}
		plan := waitForPlan(t, replica, 1, again)
		inj.deleteService(lost)
		if isTold {
			testkit.Eventually(t, waitTimeout, func() error { return checkNoFindings(t, replica) })
		}
		answer, err := replica.ApplyRepairPlan(t.Context(), applyOf(plan))
		isRefused := status.Code(err) == codes.Aborted && rpcerror.ReasonOf(err) == "PLAN_DRIFTED"
		changesNothing := err == nil && answer.GetRepair().GetSteps()[0].GetChange().GetOutcome() != metav1.Change_OUTCOME_APPLIED
		if !isRefused && (isTold || !changesNothing) {
			t.Errorf("apply of an outdated plan, which the replica knows: %t: %v, %v, want PLAN_DRIFTED", isTold, answer, err)
		}
		if inj.observer.isAllocated(lost.Spec.ClusterIP) {
			t.Errorf("%s was allocated for a deleted Service", lost.Spec.ClusterIP)
		}
	}
	inj.observer.checkViolations(t, nil)
}
