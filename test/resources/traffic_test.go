package resources

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// probe is a Pod with a Service, whose readiness a test changes to see how long a change takes.
type probe struct {
	*world
	name  string
	pod   *corev1.Pod
	ready bool
}

func (w *world) newProbe(name, address string) *probe {
	w.Helper()
	ctx := context.Background()
	if _, err := w.kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	pod, err := w.kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "sim-node-0000", Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app:1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	return &probe{world: w, name: name, pod: pod}
}

// change makes the Pod ready, or not ready.
func (p *probe) change(ctx context.Context) error {
	ready := corev1.ConditionTrue
	if p.ready {
		ready = corev1.ConditionFalse
	}
	pod := p.pod.DeepCopy()
	pod.ResourceVersion = ""
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
	if _, err := p.kube.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return err
	}
	p.ready = !p.ready
	return nil
}

// applied returns an error unless the EndpointSlice of the Service has the present readiness.
func (p *probe) applied(ctx context.Context) error {
	list, err := p.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + p.name})
	if err != nil {
		return err
	}
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready == p.ready {
				return nil
			}
		}
	}
	return fmt.Errorf("no slice of %s has an endpoint whose readiness is %v", p.name, p.ready)
}

// beating are agents, each with one holder and a connection of its own.
type beating struct {
	agents  []*agent.Agent
	holders []agent.Holder
	running sync.WaitGroup
	cancel  context.CancelFunc
}

// beat starts agents for holders. While the beats of one are not acknowledged, it renews its Lease
// at kube-apiserver, if that is real. The test's cleanup ends them.
func (w *world) beat(holders []agent.Holder, targets []string, dial func(number int) func(target string) (*grpc.ClientConn, error)) *beating {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &beating{holders: holders, cancel: cancel}
	w.Cleanup(b.end)
	var renew func(context.Context, agent.Holder) error
	if w.kube != nil {
		renew = nodelease.NewWriter(w.kube).Renew
	}
	for number, holder := range holders {
		a, err := agent.New(agent.Config{
			Targets: targets, Cluster: clusterName, Name: "resources", Logger: slog.New(slog.DiscardHandler),
			Dial: dial(number), Holders: []agent.Holder{holder}, Unacknowledged: renew,
		})
		if err != nil {
			w.Fatal(err)
		}
		b.agents = append(b.agents, a)
		b.running.Go(func() { _ = a.Run(ctx) }) // nil after cancel
	}
	return b
}

func (b *beating) end() {
	b.cancel()
	b.running.Wait()
}

func (b *beating) size() int { return len(b.agents) }

func (b *beating) renewal(number int) (at time.Time, failure string) {
	a := b.agents[number]
	return a.Renewed(b.holders[number]).Accepted, a.Status().LastError
}

func (b *beating) counters() (lost uint64, answers map[string]uint64) {
	answers = map[string]uint64{}
	for _, a := range b.agents {
		s := a.Status()
		lost += s.LostStreams
		for directive, n := range s.Answers {
			answers[directive] += n
		}
	}
	return lost, answers
}

// renewing are agents whose beats are accepted.
type renewing interface {
	size() int
	// renewal returns when the last beat of an agent was accepted, and what failed last.
	renewal(number int) (at time.Time, failure string)
	// counters returns the streams that agents have lost, and the answers that they got, by
	// directive.
	counters() (lost uint64, answers map[string]uint64)
}

// renewedSince waits until each agent has an accepted beat after a time, and returns when that was.
func (w *world) renewedSince(agents renewing, since time.Time, within time.Duration) []time.Duration {
	w.Helper()
	accepted, err := renewals(agents, since, nil, within)
	if err != nil {
		w.Fatal(err)
	}
	return durations(accepted, since)
}

// durations returns how long after a time each agent was renewed.
func durations(accepted map[int]time.Time, since time.Time) []time.Duration {
	all := make([]time.Duration, 0, len(accepted))
	for _, at := range accepted {
		all = append(all, at.Sub(since))
	}
	return all
}

// renewals waits until each agent has an accepted beat after a time, or after a later one if lost
// has it. It returns the times of these beats, also if the error says that other agents have none.
func renewals(agents renewing, since time.Time, lost map[int]time.Time, within time.Duration) (map[int]time.Time, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	renewed := map[int]time.Time{}
	for {
		missing := ""
		for i := range agents.size() {
			if _, is := renewed[i]; is {
				continue
			}
			if at, failure := agents.renewal(i); at.After(since) && at.After(lost[i]) {
				renewed[i] = at
			} else if missing == "" {
				missing = failure
			}
		}
		if len(renewed) == agents.size() {
			return renewed, nil
		}
		if ctx.Err() != nil {
			return renewed, fmt.Errorf("%d of %d agents have no accepted beat within %v; one of them: %s",
				agents.size()-len(renewed), agents.size(), within, missing)
		}
		testkit.Pause(ctx, renewalsEvery) // ten thousand agents that are read often would be most of the load
	}
}

// nodeHolders returns the holders of the Nodes of package simulate.
func nodeHolders(nodes []string) []agent.Holder {
	holders := make([]agent.Holder, len(nodes))
	for i, name := range nodes {
		holders[i] = agent.Holder{Class: "node", Name: name, BootID: "boot"}
	}
	return holders
}
