package damage

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/custody"
)

// Two installations that know nothing of each other mend one cluster, beside kube-apiserver's own repairers: nobody elects
// among them, so only the guards of their writes keep them from harm.
func TestRivals_TwoInstallationsDoNoHarm(t *testing.T) {
	h := newHand(t)
	var diaries []*diary
	for _, name := range []string{"rival-one", "rival-two"} {
		replica := startReplica(t, setting{name: name})
		replica.audits(t)
		diaries = append(diaries, keepDiary(t, replica))
	}
	crowd := startChurn(t, h.kube, testkit.Namespace(t, h.kube), *services/4)

	injuries, planted := map[string]injury{}, map[subject]bool{}
	for name, plant := range kinds() {
		done := plant(h)
		if done.fate == stays {
			done.mend()
			for _, text := range done.used {
				planted[subject{code: bootstrapv1.Finding_CODE_NOT_ALLOCATED, store: done.store, text: text}] = true
			}
		}
		injuries[name], planted[done.subject], planted[done.or] = done, true, true
	}
	crowd.end(t)
	for _, done := range injuries {
		testkit.Eventually(t, soon, func() error { return heldAll(h, done.used) })
	}
	checkAllocator(t, h, injuries)
	for _, d := range diaries {
		testkit.Eventually(t, soon, func() error { return d.open(nil) })
		for _, about := range d.falseFindings(planted) {
			if !h.witness.yielded(about) {
				t.Errorf("nobody planted %v, and it was called open", about)
			}
		}
	}
	h.witness.verdict(t, func(b custody.Breach) bool { return b.Healed > 0 && isReseated(injuries, b.Subject) })
}

// One token is given in many times at once, to the leader and to another one.
func TestRivals_OneTokenIsAppliedOnce(t *testing.T) {
	h := newHand(t)
	leader, other := startTwo(t, setting{auto: bootstrapsvc.AutoRepairOff})
	used := fourInjuries(h)
	plan := planFor(t, leader, 4)

	const askers = 8
	answers, problems := make([]*bootstrapv1.ApplyRepairResponse, askers), make([]error, askers)
	var asking sync.WaitGroup
	for i := range askers {
		asking.Go(func() {
			answers[i], problems[i] = leader.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
		})
	}
	asking.Wait()
	if _, err := other.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()}); status.Code(err) != codes.Unavailable {
		t.Errorf("who does not lead answers %v, want UNAVAILABLE", err)
	}
	final, err := leader.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
	if err != nil || !final.GetRepair().GetComplete() {
		t.Fatalf("asked once more: %v, %v, want the complete repair", final, err)
	}
	for i, answer := range answers {
		if err := answered(answer, problems[i], final); err != nil {
			t.Errorf("asker %d: %v", i, err)
		}
	}
	settled(t, h, leader, used)
	recordedOnce(t, leader, final.GetRepair())
	h.witness.verdict(t, nil)
}

// answered returns an error unless an asker got the repair, or was told that somebody else is at it.
func answered(answer *bootstrapv1.ApplyRepairResponse, err error, want *bootstrapv1.ApplyRepairResponse) error {
	switch {
	case status.Code(err) == codes.Aborted:
		return nil
	case err != nil:
		return err
	case answer.GetRepair().GetName() != want.GetRepair().GetName():
		return fmt.Errorf("got %s, want %s", answer.GetRepair().GetName(), want.GetRepair().GetName())
	case answer.GetRepair().GetComplete() && !proto.Equal(answer.GetRepair(), want.GetRepair()):
		return errors.New("a complete repair changed afterwards")
	}
	return nil
}

// What a plan was made from changes before it is applied: nothing of it may be carried out.
func TestRivals_DriftIsRefused(t *testing.T) {
	h := newHand(t)
	replica := startReplica(t, setting{auto: bootstrapsvc.AutoRepairOff})
	replica.audits(t)
	lost := h.service(plain)
	h.loseAddress(lost.Spec.ClusterIP)
	plan := planFor(t, replica, 1)
	h.remove(lost)
	testkit.Eventually(t, soon, func() error {
		_, err := replica.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
		if status.Code(err) != codes.FailedPrecondition {
			return fmt.Errorf("a plan that has drifted is answered with %w, want FAILED_PRECONDITION", err)
		}
		return nil
	})
	if h.witness.isHeld(lost.Spec.ClusterIP) {
		t.Errorf("%s was allocated for a Service that is gone", lost.Spec.ClusterIP)
	}
	h.witness.verdict(t, nil)
}
