package damage

import (
	"errors"
	"fmt"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// interruption is the write of the first replica at which it is interrupted, before or after it
// takes effect.
type interruption struct {
	at    int
	after bool
}

func (c interruption) String() string {
	side := "before"
	if c.after {
		side = "after"
	}
	return fmt.Sprintf("%s write %d", side, c.at)
}

// interruptions returns the points of interruption. A repair of four steps has fewer than 12
// writes, so the last points interrupt nothing.
func interruptions() []interruption {
	if !*long {
		return []interruption{{at: 1, after: true}, {at: 2, after: true}, {at: 5}, {at: 6, after: true}}
	}
	var all []interruption
	for at := 1; at <= 12; at++ {
		all = append(all, interruption{at: at}, interruption{at: at, after: true})
	}
	return all
}

func TestInterruption_NextReplicaCompletesTheRepair(t *testing.T) {
	testkit.LongTest(t, 1)
	for i, where := range interruptions() {
		t.Run(where.String(), func(t *testing.T) {
			inj := newInjector(t)
			checkInterruptedRepair(t, inj, where, fmt.Sprintf("interruption-%d", i))
			inj.observer.checkViolations(t, nil)
		})
	}
}

// checkInterruptedRepair starts a repair at one replica, interrupts the replica, and completes the
// repair at another one.
func checkInterruptedRepair(t *testing.T, inj *injector, where interruption, cluster string) {
	t.Helper()
	const ttl = 2 * time.Second
	// Automatic repairs would leave nothing to interrupt.
	first, second := startTwo(t, replicaConfig{name: cluster, auto: bootstrapsvc.AutoRepairOff, ttl: ttl})
	used, again := injectFour(inj)

	plan := waitForPlan(t, first, 4, again)
	first.interrupter.arm(where.at, where.after)
	answer, err := first.ApplyRepairPlan(t.Context(), applyOf(plan))
	writes := first.interrupter.writesSeen()
	t.Logf("writes of the first replica: %q, then %v", writes, err)
	if len(writes) < where.at {
		if err != nil || !hasSucceeded(answer.GetRepair()) {
			t.Errorf("no write was interrupted, and the repair is %v, %v", answer, err)
		}
		first.end()
	} else if err == nil && hasSucceeded(answer.GetRepair()) && !where.after {
		t.Errorf("the replica was interrupted %v and reports a repair that has succeeded", where)
	}

	var repair *bootstrapv1.Repair
	testkit.Eventually(t, waitTimeout, func() error {
		answer, err := second.ApplyRepairPlan(t.Context(), applyOf(plan))
		if repair = answer.GetRepair(); err == nil && !hasSucceeded(repair) {
			err = fmt.Errorf("the repair has not succeeded: %v", repair)
		}
		return err
	})
	for _, step := range repair.GetSteps() {
		if outcome := step.GetChange().GetOutcome(); outcome != metav1.Change_OUTCOME_APPLIED && outcome != metav1.Change_OUTCOME_NOT_NEEDED {
			t.Errorf("a step of a repair that has succeeded is %v", step)
		}
	}
	if len(repair.GetSteps()) != len(plan.GetSteps()) {
		t.Errorf("%d steps were planned and %d are recorded", len(plan.GetSteps()), len(repair.GetSteps()))
	}
	checkRepaired(t, inj, second, used)
	checkRecordedOnce(t, second, repair)
}

// injectFour injects damage whose repair has four steps. again repeats what kube-apiserver's own
// repairer has repaired.
func injectFour(inj *injector) (used []string, again func()) {
	inj.Helper()
	addresses := []string{inj.createService(plain).Spec.ClusterIP, inj.createService(plain).Spec.ClusterIP, inj.createService(plain).Spec.ClusterIP}
	number := inj.createService(withPorts).Spec.Ports[0].NodePort
	again = func() {
		if inj.hasAddress(addresses[0]) {
			inj.deleteAddress(addresses[0])
		}
		if inj.hasAddress(addresses[1]) {
			inj.deleteAddressInEtcd(addresses[1])
		}
	}
	again()
	inj.replaceAddress(addresses[2], func(a *networkingv1.IPAddress) { a.Labels[networkingv1.LabelIPAddressFamily] = "IPv6" }, asProtobuf)
	inj.setPortBit(number, 0)
	return append(addresses, fmt.Sprint(number)), again
}

// waitForPlan waits until a plan has the number of steps, and creates it. kube-apiserver's own
// repairer creates an IPAddress again if it learns of the new Service after the deletion of the
// IPAddress. So again damages what is no longer damaged.
func waitForPlan(t *testing.T, replica *replica, steps int, again func()) *bootstrapv1.RepairPlan {
	t.Helper()
	create := func(validateOnly bool) (*bootstrapv1.RepairPlan, error) {
		answer, err := replica.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{ValidateOnly: validateOnly})
		plan := answer.GetRepairPlan()
		if err == nil && len(plan.GetSteps()) != steps {
			err = fmt.Errorf("the plan has %d steps, want %d: %v; it skips %v", len(plan.GetSteps()), steps, plan.GetSteps(), plan.GetSkippedFindings())
		}
		return plan, err
	}
	testkit.Eventually(t, waitTimeout, func() error {
		again()
		_, err := create(true)
		return err
	})
	plan, err := create(false)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func applyOf(plan *bootstrapv1.RepairPlan) *bootstrapv1.ApplyRepairPlanRequest {
	return &bootstrapv1.ApplyRepairPlanRequest{Name: plan.GetName(), Etag: plan.GetEtag()}
}

func hasSucceeded(repair *bootstrapv1.Repair) bool {
	return repair.GetState() == bootstrapv1.Repair_STATE_SUCCEEDED
}

func isAutomatic(finding *bootstrapv1.Finding) bool {
	return finding.GetRepairMode() == bootstrapv1.Finding_REPAIR_MODE_AUTO
}

// checkRepaired waits until there are no findings and all subjects are allocated, and checks the
// allocator.
func checkRepaired(t *testing.T, inj *injector, replica *replica, used []string) {
	t.Helper()
	testkit.Eventually(t, waitTimeout, func() error {
		return errors.Join(checkNoFindings(t, replica), checkAllocated(inj, used))
	})
	for _, text := range used {
		if err := checkRefused(t, inj.kube, inj.namespace, text); err != nil {
			t.Error(err)
		}
	}
}

// checkRecordedOnce checks that ListRepairs contains the repair once.
func checkRecordedOnce(t *testing.T, replica *replica, want *bootstrapv1.Repair) {
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
