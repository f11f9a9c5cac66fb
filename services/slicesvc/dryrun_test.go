package slicesvc_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// dryRun is a slicesvc with both loops in dry run, all terms, and a transport that refuses writes.
type dryRun struct {
	trackers *shadow.Trackers
	writes   *testkit.RefusedWrites
	client   slicev1.SliceServiceClient
	service  *slicesvc.Service
}

func newDryRun(t *testing.T, namespace string) *dryRun {
	t.Helper()
	refused := &testkit.RefusedWrites{}
	d := runDryRun(t, namespace, refused.Wrap)
	d.writes = refused
	return d
}

// runDryRun is newDryRun on a transport of the caller's.
func runDryRun(t *testing.T, namespace string, wrap transport.WrapperFunc) *dryRun {
	t.Helper()
	d := &dryRun{}
	config := testkit.Cluster(t).RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(wrap)
	clients, err := slicesvc.Connect(kubeconn.Fence(testkit.ObjectsOf(config, namespace)))
	if err != nil {
		t.Fatal(err)
	}
	cfg := shadow.DefaultConfig(slicesvc.LoopName, slicesvc.MirrorLoopName)
	cfg.Loops, cfg.Settle = []string{slicesvc.MirrorLoopName, slicesvc.LoopName}, time.Second
	if d.trackers, err = shadow.New(cfg, nil); err != nil {
		t.Fatal(err)
	}
	deps := slicesvc.Deps{
		Member: member(), Kube: clients, Leadership: termtest.NewCandidate(member(), slicesvc.DefaultConfig().Shards),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Ready: observe.NewChecks(), Shadow: d.trackers,
	}
	d.service, d.client, _ = run(t, deps)
	ready(t, deps)
	return d
}

// await waits until the loop has compared since some time, and its differences of a namespace are
// as wanted: kind, object without its suffix, and fields.
func (d *dryRun) await(t *testing.T, loop, namespace string, want ...string) {
	t.Helper()
	began := time.Now()
	testkit.Eventually(t, testTimeout, func() error {
		found := d.trackers.Tracker(loop).Comparison(1000)
		if found.Undetermined != "" || found.Ended.Sub(found.Since) < found.Settle || found.Ended.Sub(began) < 2*found.Settle {
			return fmt.Errorf("the comparison holds since %v, undetermined %q", found.Since, found.Undetermined)
		}
		var got []string
		for _, difference := range found.Differences {
			if difference.Object.Namespace != namespace {
				continue
			}
			line := fmt.Sprintf("%s of %s by %s:", difference.Kind, difference.Subject, difference.Writer)
			for _, field := range difference.Fields {
				line += " " + field.Path
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("differences (-want +got):\n%s", diff)
		}
		return nil
	})
}

func TestDryRun_FindsWhatIsSpoiledAndWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t) // another slicesvc writes
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.pod("web-1", node, []string{"10.1.0.2"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")

	d := newDryRun(t, f.namespace)
	d.await(t, slicesvc.LoopName, f.namespace)
	f.status("web-0", unready)
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a RS")
	d.await(t, slicesvc.LoopName, f.namespace)

	f.stop() // nothing writes from here on
	spoiled := f.slices()[0].DeepCopy()
	for i := range spoiled.Endpoints {
		if spoiled.Endpoints[i].Addresses[0] == "10.1.0.2" {
			spoiled.Endpoints[i].Conditions.Ready = new(false)
		}
	}
	_, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Update(t.Context(), spoiled, metav1.UpdateOptions{FieldManager: "spoiler"})
	f.must(err)
	d.await(t, slicesvc.LoopName, f.namespace,
		"content of services/"+f.namespace+`/web by spoiler: endpoints["10.1.0.2 web-1"].conditions.ready`)

	f.pod("web-2", node, []string{"10.1.0.3"})
	d.await(t, slicesvc.LoopName, f.namespace,
		"content of services/"+f.namespace+`/web by spoiler: endpoints["10.1.0.2 web-1"].conditions.ready endpoints["10.1.0.3 web-2"]`)
	f.must(f.clients.DiscoveryV1().EndpointSlices(f.namespace).Delete(t.Context(), spoiled.Name, metav1.DeleteOptions{}))
	d.await(t, slicesvc.LoopName, f.namespace,
		"missing of services/"+f.namespace+`/web by : endpoints["10.1.0.1 web-0"] endpoints["10.1.0.2 web-1"] endpoints["10.1.0.3 web-2"]`)

	d.expectNothingWritten(t, f.namespace)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// A hand-over needs no restart: the loop in dry run writes under its terms as soon as it is
// switched on, and compares again after it is switched off.
func TestDryRun_WritesWhileItIsSwitchedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stop() // nothing else writes
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	var writes atomic.Int64
	d := runDryRun(t, f.namespace, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodGet {
				writes.Add(1)
			}
			return next.RoundTrip(request)
		})
	})
	d.await(t, slicesvc.LoopName, f.namespace, "missing of services/"+f.namespace+`/web by : endpoints["10.1.0.1 web-0"]`)
	if n := writes.Load(); n > 0 {
		t.Errorf("a dry run wrote %d times", n)
	}

	loops := d.service.Loops()
	loops.SetSwitched([]string{slicesvc.LoopName})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	f.pod("web-1", node, []string{"10.1.0.2"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
	if found := d.trackers.Tracker(slicesvc.LoopName).Comparison(1); !found.Idle {
		t.Errorf("a loop that writes compares, too: %+v", found)
	}

	loops.SetSwitched(nil)
	testkit.Eventually(t, testTimeout, func() error {
		for _, status := range loops.Status() {
			if status.Name == slicesvc.LoopName && !status.DryRun {
				return fmt.Errorf("the loop is switched off: %+v", status)
			}
		}
		return nil
	})
	before := writes.Load()
	f.status("web-1", unready)
	d.await(t, slicesvc.LoopName, f.namespace,
		"content of services/"+f.namespace+`/web by Go-http-client: endpoints["10.1.0.2 web-1"].conditions.ready endpoints["10.1.0.2 web-1"].conditions.serving`)
	if n := writes.Load(); n > before {
		t.Errorf("a loop that is switched off wrote %d times", n-before)
	}
}

func TestDryRun_FindsEndpointsThatAreNotMirroredAndWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.service(func(service *corev1.Service) { service.Spec.Selector = nil })
	_, err := f.clients.CoreV1().Endpoints(f.namespace).Create(t.Context(), &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}},
		}},
	}, metav1.CreateOptions{})
	f.must(err)
	d := newDryRun(t, f.namespace)
	d.await(t, slicesvc.MirrorLoopName, f.namespace, "missing of endpoints/"+f.namespace+`/web by : endpoints["192.0.2.1"]`)
	d.expectNothingWritten(t, f.namespace)
}

// expectNothingWritten expects that no request wrote anything, also not one that a person asks for,
// and that the loops say that they are in dry run.
func (d *dryRun) expectNothingWritten(t *testing.T, namespace string) {
	t.Helper()
	name := "namespaces/" + namespace + "/serviceslices/web"
	planned, err := d.client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: name})
	if err != nil || planned.GetPlan().GetMode().String() != "MODE_SHADOW" || len(planned.GetPlan().GetChanges()) == 0 {
		t.Errorf("plan = %v, %v; want changes of a loop in dry run", planned, err)
	}
	_, err = d.client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: name})
	if status.Code(err) != codes.FailedPrecondition || rpcerror.ReasonOf(err) != "LOOP_DRY_RUN" {
		t.Errorf("reconcile = %v, want it refused with LOOP_DRY_RUN", err)
	}
	for _, loop := range d.service.Loops().Status() {
		if !loop.DryRun || loop.LastSuccess.IsZero() {
			t.Errorf("loop %s: %+v; want a dry run with a pass", loop.Name, loop)
		}
	}
	if problems := d.service.Problems(); len(problems) > 0 {
		t.Errorf("problems = %v, want none", problems)
	}
	if seen := d.writes.All(); len(seen) > 0 {
		t.Errorf("written: %s", strings.Join(seen, ", "))
	}
}
