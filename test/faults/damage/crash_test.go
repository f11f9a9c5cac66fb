package damage

import (
	"errors"
	"fmt"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
)

// cut is where the first replica's life ends: at which of its writes, and on which side of it.
type cut struct {
	at    int
	after bool
}

func (c cut) String() string {
	side := "before"
	if c.after {
		side = "after"
	}
	return fmt.Sprintf("%s write %d", side, c.at)
}

// cuts are all that a repair of four steps offers, and more: where there is no such write, the repair ends as it should.
func cuts() []cut {
	if !*long {
		return []cut{{at: 1, after: true}, {at: 2, after: true}, {at: 5}, {at: 6, after: true}}
	}
	var all []cut
	for at := 1; at <= 12; at++ {
		all = append(all, cut{at: at}, cut{at: at, after: true})
	}
	return all
}

func TestCrash_RepairIsFinishedByTheNextReplica(t *testing.T) {
	for i, where := range cuts() {
		t.Run(where.String(), func(t *testing.T) {
			h := newHand(t)
			repairAcross(t, h, where, fmt.Sprintf("crash-%d", i))
			h.witness.verdict(t, nil)
		})
	}
}

// repairAcross begins a repair under one replica, cuts that off, and lets the next one end it.
func repairAcross(t *testing.T, h *hand, where cut, cluster string) {
	t.Helper()
	const ttl = 2 * time.Second
	// Only who is asked mends: else nothing would be left to be cut.
	first, second := startTwo(t, setting{name: cluster, auto: bootstrapsvc.AutoRepairOff, ttl: ttl})
	used := fourInjuries(h)

	plan := planFor(t, first, 4)
	first.blade.arm(where.at, where.after)
	answer, err := first.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
	writes := first.blade.seen()
	t.Logf("writes of the first replica: %q, then %v", writes, err)
	if len(writes) < where.at {
		if err != nil || !answer.GetRepair().GetComplete() {
			t.Errorf("nothing was cut off, and the repair is %v, %v", answer, err)
		}
		first.end()
	} else if err == nil && answer.GetRepair().GetComplete() && !where.after {
		t.Errorf("the replica was cut off %v and says that all is done", where)
	}

	var repair *bootstrapv1.Repair
	testkit.Eventually(t, soon, func() error {
		answer, err := second.ApplyRepair(t.Context(), &bootstrapv1.ApplyRepairRequest{Token: plan.GetToken()})
		if repair = answer.GetRepair(); err == nil && !repair.GetComplete() {
			err = fmt.Errorf("the repair is not complete: %v", repair)
		}
		return err
	})
	for _, step := range repair.GetSteps() {
		if state := step.GetState(); state != bootstrapv1.RepairStep_STATE_DONE && state != bootstrapv1.RepairStep_STATE_UNNEEDED {
			t.Errorf("a step of a complete repair is %v", step)
		}
	}
	if len(repair.GetSteps()) != len(plan.GetSteps()) {
		t.Errorf("%d steps were planned and %d are recorded", len(plan.GetSteps()), len(repair.GetSteps()))
	}
	settled(t, h, second, used)
	recordedOnce(t, second, repair)
}

// fourInjuries are mended by four steps in three stores' ways.
func fourInjuries(h *hand) (used []string) {
	h.Helper()
	addresses := []string{h.service(plain).Spec.ClusterIP, h.service(plain).Spec.ClusterIP, h.service(plain).Spec.ClusterIP}
	number := h.service(withPorts).Spec.Ports[0].NodePort
	h.loseAddress(addresses[0])
	h.loseAddressInEtcd(addresses[1])
	h.rename(addresses[2], func(a *networkingv1.IPAddress) { a.Labels[networkingv1.LabelIPAddressFamily] = "IPv6" }, asProtobuf)
	h.setPort(number, 0)
	return append(addresses, fmt.Sprint(number))
}

// planFor waits until a plan of everything has as many steps.
func planFor(t *testing.T, replica *replica, steps int) *bootstrapv1.PlanRepairResponse {
	t.Helper()
	var plan *bootstrapv1.PlanRepairResponse
	testkit.Eventually(t, soon, func() (err error) {
		plan, err = replica.PlanRepair(t.Context(), &bootstrapv1.PlanRepairRequest{})
		if err == nil && len(plan.GetSteps()) != steps {
			err = fmt.Errorf("the plan has %d steps, want %d: %v; it leaves %v", len(plan.GetSteps()), steps, plan.GetSteps(), plan.GetLeft())
		}
		return err
	})
	return plan
}

// settled waits until nothing is wrong any more, and asks the allocator.
func settled(t *testing.T, h *hand, replica *replica, used []string) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		return errors.Join(nothingFound(t, replica), heldAll(h, used))
	})
	for _, text := range used {
		if err := refuses(t, h.kube, h.namespace, text); err != nil {
			t.Error(err)
		}
	}
}

// recordedOnce checks that the history has the repair once, as it was answered.
func recordedOnce(t *testing.T, replica *replica, want *bootstrapv1.Repair) {
	t.Helper()
	list, err := replica.ListRepairs(t.Context(), &bootstrapv1.ListRepairsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, repair := range list.GetRepairs() {
		if repair.GetName() == want.GetName() {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%s is recorded %d times in %v", want.GetName(), found, list.GetRepairs())
	}
}
