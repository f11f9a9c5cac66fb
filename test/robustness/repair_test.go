package robustness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/simulate"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// freed is how many addresses are freed at once, and repairKills how often their repair is
// interrupted.
const freed, repairKills = 4, 3

// longestHold is far longer than a write needs, after which its sender is killed.
const longestHold = 10 * time.Second

// freeAddressInUse deletes the allocation of the address of a Service that lasts.
func (w *world) freeAddressInUse() error {
	_, err := w.freeAddresses(1)
	return err
}

// freeAddresses deletes the allocations of the addresses of Services that last, and returns the
// addresses.
func (w *world) freeAddresses(count int) (addresses []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	list, err := w.direct.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: simulate.Label + "=true"})
	if err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		if s.Spec.ClusterIP != corev1.ClusterIPNone && len(addresses) < count {
			addresses = append(addresses, s.Spec.ClusterIP)
		}
	}
	if len(addresses) < count {
		return nil, fmt.Errorf("%d Services have an address, want %d", len(addresses), count)
	}
	for _, address := range addresses {
		err = errors.Join(err, w.direct.NetworkingV1().IPAddresses().Delete(ctx, address, metav1.DeleteOptions{}))
	}
	return addresses, err
}

// interrupter kills the replicas that allocate addresses again: after the first allocation, before
// the second one, and after that. Of the writes that a replica sends at once, one arrives.
type interrupter struct {
	*world
	restarts sync.WaitGroup
	pause    time.Duration // until a killed process is replaced

	mu      sync.Mutex // guards the following fields
	kills   int
	sent    bool           // the write after which the next kill comes
	killed  map[*slot]bool // whose next process has not started
	results []error
}

// interruptRepair frees addresses in use, and kills each replica that begins to repair that. It
// returns when each one is replaced. The last one completes the repair.
func (w *world) interruptRepair(_ *slot, f schedule.Fault) error {
	i := &interrupter{world: w, pause: f.Duration, killed: map[*slot]bool{}}
	for _, s := range w.replicasOf(f.Service) {
		s.onChange(func(c faultproxy.Change) {
			if allocates(c.Request) {
				i.written(s)
			}
		})
		defer s.onChange(nil)
		// A request whose client is gone is not forwarded.
		defer s.ToKube.Delay(func(r faultproxy.Request) bool { return allocates(r) && i.holds(s) }, longestHold)()
	}
	addresses, err := w.freeAddresses(freed)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for !i.done() && !w.allocated(ctx, addresses) {
		if ctx.Err() != nil {
			return fmt.Errorf("the addresses %v are neither allocated nor was their repair interrupted %d times within %v", addresses, repairKills, startTimeout)
		}
		testkit.Pause(ctx, 100*time.Millisecond)
	}
	i.restarts.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	if leads := w.leader(f.Service); !w.disturbed(leads, leads.ProcessName()) {
		// Something else may have allocated the last address, as kube-apiserver itself does.
		w.level(leads, "interruptions of one repair", float64(i.kills), 1, repairKills)
	}
	return errors.Join(i.results...)
}

func (i *interrupter) done() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.kills >= repairKills
}

func allocates(r faultproxy.Request) bool { return r.Resource == "ipaddresses" && r.Verb == "create" }

// holds says whether a write waits, and kills its sender before the write if that is due.
func (i *interrupter) holds(s *slot) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.kills >= repairKills:
		return false
	case i.killed[s]: // Its sender is gone.
		return true
	case i.kills == 1:
		i.kill(s)
		return true
	case i.sent:
		return true
	default:
		i.sent = true
		return false
	}
}

// written kills the sender of a write after the write, if that is due.
func (i *interrupter) written(s *slot) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.kills < repairKills && i.sent {
		i.kill(s)
	}
}

// kill kills a process, and starts another one later. A process that is killed already may have
// left another write. The caller holds mu.
func (i *interrupter) kill(s *slot) {
	if i.killed[s] {
		return
	}
	i.kills++
	i.sent, i.killed[s] = false, true
	i.down(s, 0)
	s.Kill()
	i.restarts.Go(func() {
		testkit.Pause(context.Background(), i.pause)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.killed[s] = false
		if err := s.Start(); err != nil {
			i.results = append(i.results, err)
		}
	})
}

// allocated reports whether all addresses are allocated.
func (w *world) allocated(ctx context.Context, addresses []string) bool {
	for _, address := range addresses {
		if _, err := w.direct.NetworkingV1().IPAddresses().Get(ctx, address, metav1.GetOptions{}); err != nil {
			if !apierrors.IsNotFound(err) {
				w.miss(err)
			}
			return false
		}
	}
	return true
}
