package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/simulate"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

const (
	churnedServices = 6
	churnedPods     = 48
	// podPace, servicePace and askPace are the times between two changes of Pods, two of Services,
	// and two questions to the gateway.
	podPace     = 150 * time.Millisecond
	servicePace = 500 * time.Millisecond
	askPace     = 300 * time.Millisecond
	// answerTimeout is well above the time in which the gateway promises an answer.
	answerTimeout = 5 * time.Second
)

// makeObjects creates the Nodes, Pods and Services of the traffic, and objects of other programs.
func (w *world) makeObjects(ctx context.Context) {
	w.Helper()
	if err := w.simulated().Create(ctx); err != nil {
		w.Fatal(err)
	}
	if err := errors.Join(w.makeForeign(ctx), w.makeMarked(ctx)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) simulated() *simulate.Fleet {
	return simulate.New(simulate.Config{
		Nodes: *agents + *kubelets, Services: churnedServices, Pods: churnedPods, Namespace: namespace, Seed: w.seed,
	}, w.direct, slog.New(slog.DiscardHandler))
}

// makeForeign creates objects that a service could take for its own: a slice of a Service by
// another program, a Lease without a Node, and an address without a Service.
func (w *world) makeForeign(ctx context.Context) error {
	of := func(service string, labels map[string]string) map[string]string {
		labels[foreignLabel] = service
		return labels
	}
	ready := true
	if _, err := w.direct.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "app-000-by-hand", Labels: of(history.Slicesvc, map[string]string{
			discoveryv1.LabelServiceName: "app-000", discoveryv1.LabelManagedBy: "by-hand",
		})},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"198.51.100.7"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	holder, seconds, renewed := "by-hand", int32(3600), metav1.NowMicro()
	if _, err := w.direct.CoordinationV1().Leases(nodeLeases).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", Labels: of(history.Leasesvc, map[string]string{})},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := w.direct.NetworkingV1().IPAddresses().Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.250.7", Labels: of(history.Bootstrapsvc, map[string]string{
			networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "by-hand",
		})},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Group: "gateway.networking.k8s.io", Resource: "gateways", Namespace: namespace, Name: "by-hand",
		}},
	}, metav1.CreateOptions{})
	return err
}

// churn changes Pods and Services as the profile says, until ctx ends.
func (w *world) churn(ctx context.Context) {
	if w.profile == mixed || w.profile == readiness {
		w.background.Go(func() {
			simulated := w.simulated()
			if err := simulated.Churn(ctx, podPace); err != nil {
				w.note(err)
			}
		})
	}
	if w.profile == rollouts {
		w.background.Go(func() { w.simulated().RollOut(ctx, podPace) })
	}
	if w.profile == nodeChurn {
		w.background.Go(func() { w.nodes.addAndRemove(ctx) })
	}
	if !w.profile.services() {
		return
	}
	const most = 30
	var names []string
	for n := 0; ctx.Err() == nil; n++ {
		if err := w.churnService(ctx, n); err != nil {
			w.miss(fmt.Errorf("create a Service: %w", err))
		} else if names = append(names, serviceName(n)); len(names) > most {
			err := w.direct.CoreV1().Services(namespace).Delete(ctx, names[0], metav1.DeleteOptions{})
			if names = names[1:]; err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				w.miss(fmt.Errorf("delete a Service: %w", err))
			}
		}
		testkit.Pause(ctx, servicePace)
	}
}

func serviceName(n int) string { return fmt.Sprintf("churned-%04d", n) }

// churnService creates a Service with a node port. It selects Pods of another Service.
func (w *world) churnService(ctx context.Context, n int) error {
	_, err := w.direct.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(n)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}},
			Selector: map[string]string{"app": fmt.Sprintf("app-%03d", n%churnedServices)},
		},
	}, metav1.CreateOptions{})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ask asks the gateway for the leaders of all shards, until ctx ends.
func (w *world) ask(ctx context.Context) {
	client := statusv1.NewStatusServiceClient(w.gateway)
	for ctx.Err() == nil {
		answer := history.Answer{Asked: w.now(), Partial: map[string]bool{}, Missing: map[string][]int{}}
		call, cancel := context.WithTimeout(ctx, answerTimeout)
		reply, err := client.ListShards(call, &statusv1.ListShardsRequest{PageSize: 5000})
		cancel()
		answer.Answered = w.now()
		if ctx.Err() != nil {
			return
		}
		w.recordAnswer(answer, reply, err)
		testkit.Pause(ctx, askPace)
	}
}

func (w *world) recordAnswer(answer history.Answer, reply *statusv1.ListShardsResponse, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		answer.Failed = err.Error()
	}
	unnamed := map[string]bool{}
	for _, missing := range reply.GetMissing() {
		service := missing.GetService()
		answer.Partial[service] = true
		unnamed[service] = unnamed[service] || len(missing.GetShards()) == 0
		for _, shard := range missing.GetShards() {
			answer.Missing[service] = append(answer.Missing[service], int(shard))
		}
	}
	// A part without shards is a replica whose shards are unknown, or that leads none.
	maps.DeleteFunc(answer.Missing, func(service string, _ []int) bool { return unnamed[service] })
	for _, s := range reply.GetShards() {
		answer.Leaders = append(answer.Leaders, history.Leader{
			Service: s.GetService(), Shard: int(s.GetShard()), Holder: s.GetLeaderId(), Epoch: s.GetEpoch(),
		})
	}
	w.record.Answers = append(w.record.Answers, answer)
}

// nameLeaders replaces the replica ids in the answers by the names of their processes. An id that
// no process had stays, and is no leader. The caller holds mu.
func (w *world) nameLeaders() {
	for _, answer := range w.record.Answers {
		for i, leader := range answer.Leaders {
			answer.Leaders[i].Holder = cmp.Or(w.recorder.processes[leader.Holder], leader.Holder)
		}
	}
}
