package alerts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

// fault is an entry of the table.
type fault struct {
	// Alert must fire. Without it the entry is quiet: no alert may fire.
	Alert string
	// What says what is done, for the table.
	What string
	// Also are alerts that may fire too, each with a reason.
	Also map[string]string
	// Inject begins the fault and returns what ends it.
	Inject func(*world) (undo func())
	// Slow bounds the time until the condition of the rule holds, if it is longer than detection.
	Slow time.Duration
}

// loopFails is why TrivetReplicaUnready may fire beside the alert of a failing loop.
const loopFails = "a replica whose loop fails lets another one try, and is not ready for a minute or more"

// faults are tried in this order.
func faults() []fault {
	return []fault{
		{Alert: "TrivetReplicaDown", What: "one of two replicas of slicesvc is killed", Inject: func(w *world) func() {
			r := w.of("slicesvc")[1]
			r.Kill()
			return func() { w.mustStart(r) }
		}},
		{Alert: "TrivetServerDown", What: "both replicas of slicesvc are killed", Inject: func(w *world) func() {
			for _, r := range w.of("slicesvc") {
				r.Kill()
			}
			return func() { w.mustStart(w.of("slicesvc")...) }
		}, Also: map[string]string{"TrivetReplicaDown": "each replica is down too"}},
		{Alert: "TrivetNoLeader", What: "both replicas of bootstrapsvc are cut from etcd", Inject: func(w *world) func() {
			for _, r := range w.of("bootstrapsvc") {
				r.ToEtcd.Disconnect(true)
			}
			return func() {
				for _, r := range w.of("bootstrapsvc") {
					r.ToEtcd.Disconnect(false)
				}
			}
		}, Also: map[string]string{"TrivetReplicaUnready": "a replica without etcd is not ready"}},
		{Alert: "TrivetReplicaUnready", What: "one of two replicas of leasesvc is cut from etcd", Inject: func(w *world) func() {
			r := w.of("leasesvc")[1]
			r.ToEtcd.Disconnect(true)
			return func() { r.ToEtcd.Disconnect(false) }
		}},
		{Alert: "TrivetLoopFails", What: "the slice of default/kubernetes is deleted, and kube-apiserver refuses to create it", Inject: refusedSlice,
			Also: map[string]string{"TrivetReplicaUnready": loopFails}},
		{Alert: "TrivetSessionsLost", What: "etcd revokes the session of one replica of leasesvc every three seconds", Inject: revokedSessions},
		{Alert: "TrivetCallPanics", What: "a handler panics, by a hook of the test", Inject: func(w *world) func() {
			ctx := metadata.AppendToOutgoingContext(context.Background(), panicHeader, "true")
			client := leasev1.NewLeaseServiceClient(w.dial(w.of("leasesvc")[0], w.client("operator")))
			if _, err := client.ListLeases(ctx, &leasev1.ListLeasesRequest{Parent: "namespaces/-"}); err == nil {
				w.Error("the handler did not panic")
			}
			return func() {}
		}},
		{Alert: "TrivetCertificateExpires", What: "a certificate of leasesvc ends in three days", Inject: shortCertificate(72 * time.Hour)},
		{Alert: "TrivetCertificateEnds", What: "a certificate of leasesvc ends in twelve hours", Inject: shortCertificate(12 * time.Hour),
			Also: map[string]string{"TrivetCertificateExpires": "twelve hours are less than seven days"}},
		{Alert: "TrivetCertificateReloadFails", What: "the key of leasesvc is replaced by one of another certificate", Inject: func(w *world) func() {
			r := w.of("leasesvc")[0]
			pair, err := w.lab.PKI.Authority().Issue(certs.ClientLeaf("other"), leafLifetime, time.Now())
			w.must(err)
			identitytest.Replace(w, w.lab.ServerFiles(r.Service, 0).KeyFile, pair.KeyPEM)
			return func() { w.setLifetime(r, leafLifetime) }
		}},
		{Alert: "TrivetHandshakesFail", What: "a client with a certificate of a foreign authority tries twice a second", Inject: foreignClient},
		{Alert: "TrivetAccessReviewsFail", What: "kube-apiserver refuses the access reviews of one replica of slicesvc", Inject: func(w *world) func() {
			return w.of("slicesvc")[0].ToKube.Refuse(func(r faultproxy.Request) bool {
				return r.Resource == "subjectaccessreviews" || r.Resource == "tokenreviews"
			}, 500, metav1.StatusReasonInternalError)
		}},
		{Alert: "TrivetConnectionsRefused", What: "a client opens 100 connections to the gateway, which accepts 40", Inject: manyConnections},
		{Alert: "TrivetAuditRecordsLost", What: "the audit log of one replica of leasesvc is full and cannot become a backup", Inject: fullAuditLog},
		{Alert: "TrivetAPIServerNotReady", What: "one of two kube-apiservers is not ready", Inject: func(w *world) func() {
			return w.of("bootstrapsvc")[1].ToKube.Refuse(readyz, 503, metav1.StatusReasonServiceUnavailable)
		}, Also: map[string]string{"TrivetReplicaUnready": "the bootstrapsvc beside it does not lead"}},
		{Alert: "TrivetNoAPIServer", What: "neither kube-apiserver is ready", Inject: func(w *world) func() {
			var stops []func()
			for _, r := range w.of("bootstrapsvc") {
				stops = append(stops, r.ToKube.Refuse(readyz, 503, metav1.StatusReasonServiceUnavailable))
			}
			return func() { each(stops) }
		}, Also: map[string]string{"TrivetAPIServerNotReady": "each of them is not ready", "TrivetReplicaUnready": "each bootstrapsvc stands beside one of them"}},
		{Alert: "TrivetBaselineReport", What: "Service default/kubernetes is deleted and keeps a finalizer", Inject: terminatingService},
		{Alert: "TrivetAllocationFinding", What: "two Services have one ClusterIP", Inject: func(w *world) func() {
			_, with := w.fleet.Services()
			_, err := w.fleet.DuplicateAddress(context.Background(), with[0])
			w.must(err)
			return func() { w.must(w.fleet.RestoreAddress(context.Background(), with[0])) }
		}, Slow: time.Minute},
		{Alert: "TrivetRepairFailed", What: "an IPAddress in use is deleted, and kube-apiserver forbids the repair that a person applies", Inject: refusedRepair,
			Also: map[string]string{"TrivetAllocationFinding": "the finding stays until it is repaired"}},
		{Alert: "TrivetRepairFailed", What: "an IPAddress in use is deleted, and kube-apiserver forbids the automatic repair", Inject: refusedAutomaticRepair, Slow: 2 * time.Minute,
			Also: map[string]string{
				"TrivetAllocationFinding": "the finding stays until it is repaired",
				"TrivetLoopFails":         "a pass that leaves a repair undone has failed",
				"TrivetReplicaUnready":    loopFails,
			}},
		{Alert: "TrivetRangeNearlyFull", What: "26 Services take 2,600 node ports", Inject: manyNodePorts, Slow: time.Minute},
		{Alert: "TrivetNodeMarkingSuspended", What: "kube-apiserver refuses to show Leases to leasesvc", Inject: func(w *world) func() {
			return w.refuse("leasesvc", func(r faultproxy.Request) bool {
				return r.Resource == "leases" && (r.Verb == "get" || r.Verb == "list")
			}, 403, metav1.StatusReasonForbidden)
		}, Also: map[string]string{
			"TrivetReplicaUnready": loopFails,
		}},
		{Alert: "TrivetNodesCutOff", What: "an agent ends while its kubelet renews its Lease", Inject: agentEnds, Slow: time.Minute},
		{Alert: "TrivetLeaseWritesLate", What: "kube-apiserver does not answer the Lease writes of leasesvc", Inject: func(w *world) func() {
			var stops []func()
			for _, r := range w.of("leasesvc") {
				stops = append(stops, r.ToKube.Hang(faultproxy.Resource("leases", "update", "patch", "create")))
			}
			return func() { each(stops) }
		}, Slow: time.Minute},
		{Alert: "TrivetEvictionsLate", What: "kube-apiserver refuses to delete the Pods of a node with taint NoExecute", Inject: refusedEvictions,
			Also: map[string]string{"TrivetReplicaUnready": loopFails}},
		{Alert: "TrivetDuplicateHolder", What: "a second machine beats for a node", Slow: 3 * time.Minute, Inject: func(w *world) func() {
			node := w.fleet.Nodes()[0]
			w.mu.Lock()
			first := w.agents[node]
			w.mu.Unlock()
			w.live(node, "boot-of-another-machine")
			return func() {
				first()
				w.die(node)
				w.live(node, "boot-after-"+w.stamp())
			}
		}},
		{Alert: "TrivetSlicesLate", What: "150 Services are made while kube-apiserver does not answer the slice writes of slicesvc", Inject: waitingServices},
		{Alert: "TrivetSliceContention", What: "another writer reverts the slices of ten Services", Inject: rival, Slow: time.Minute},
		{Alert: "TrivetCheckpointsFail", What: "etcd is out of space while a node dies", Inject: fullEtcd, Slow: time.Minute,
			Also: map[string]string{
				"TrivetLeaseWritesLate":      "kube-apiserver writes to the same etcd",
				"TrivetReplicaUnready":       loopFails,
				"TrivetLoopFails":            "kube-apiserver writes to the same etcd",
				"TrivetNodeMarkingSuspended": "the self-check of leasesvc does not pass",
			}},
		{Alert: "TrivetSliceWatchSilent", What: "the Pod watches and lists of slicesvc are silent", Inject: func(w *world) func() {
			var stops []func()
			for _, r := range w.of("slicesvc") {
				stops = append(stops, r.ToKube.HoldEvents(faultproxy.Resource("pods")), r.ToKube.Hang(faultproxy.Resource("pods", "list", "watch")))
			}
			return func() { each(stops) }
		}, Slow: 3 * time.Minute},
	}
}

// readyz selects the probes of a kube-apiserver.
func readyz(r faultproxy.Request) bool { return strings.HasPrefix(r.Path, "/readyz") }

func each(stops []func()) {
	for _, stop := range stops {
		stop()
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) mustStart(replicas ...*worldtest.Replica) {
	w.Helper()
	for _, r := range replicas {
		w.must(r.Start())
	}
}

// refuse refuses requests of all replicas of a service.
func (w *world) refuse(service string, match faultproxy.Match, code int, reason metav1.StatusReason) (stop func()) {
	var stops []func()
	for _, r := range w.of(service) {
		stops = append(stops, r.ToKube.Refuse(match, code, reason))
	}
	return func() { each(stops) }
}

// repeat does something once a period until stop is called.
func (w *world) repeat(period time.Duration, do func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(w.context)
	ended := make(chan struct{})
	w.background.Go(func() {
		defer close(ended)
		for ctx.Err() == nil {
			do(ctx)
			testkit.Pause(ctx, period)
		}
	})
	return func() { cancel(); <-ended }
}

func refusedSlice(w *world) func() {
	stop := w.refuse("bootstrapsvc", func(r faultproxy.Request) bool {
		return r.Resource == "endpointslices" && (r.Verb == "create" || r.Verb == "update" || r.Verb == "patch")
	}, 500, metav1.StatusReasonInternalError)
	err := w.kube.DiscoveryV1().EndpointSlices("default").Delete(context.Background(), "kubernetes", metav1.DeleteOptions{})
	w.must(err)
	return stop
}

func revokedSessions(w *world) func() {
	return w.repeat(3*time.Second, func(ctx context.Context) {
		if err := w.revokeOneSession(ctx, "leasesvc"); err != nil && ctx.Err() == nil {
			w.Error(err)
		}
	})
}

func shortCertificate(lifetime time.Duration) func(*world) func() {
	return func(w *world) func() {
		r := w.of("leasesvc")[0]
		w.setLifetime(r, lifetime)
		return func() { w.setLifetime(r, leafLifetime) }
	}
}

func foreignClient(w *world) func() {
	foreign, err := certs.NewAuthority("foreign", leafLifetime, time.Now())
	w.must(err)
	files, err := w.lab.PKI.FilesFrom(foreign, "foreign-stranger", certs.ClientLeaf("stranger"))
	w.must(err)
	certificate, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	w.must(err)
	address := w.of("leasesvc")[0].GRPC
	return w.repeat(500*time.Millisecond, func(ctx context.Context) {
		dialer := tls.Dialer{Config: &tls.Config{
			InsecureSkipVerify: true, NextProtos: []string{"h2"},
			// A certificate of Certificates is sent only to a server that asks for its authority.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil },
		}}
		if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = conn.Read(make([]byte, 1)) // the server refuses after the client's last message
			_ = conn.Close()
		}
	})
}

func manyConnections(w *world) func() {
	address := w.gateway().GRPC
	var kept []net.Conn
	stop := w.repeat(time.Second, func(ctx context.Context) {
		for len(kept) > 0 {
			_ = kept[0].Close()
			kept = kept[1:]
		}
		for range 100 {
			if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
				kept = append(kept, conn)
			}
		}
	})
	return func() {
		stop()
		for _, conn := range kept {
			_ = conn.Close()
		}
	}
}

// fullAuditLog makes each write fail: the file is full, and no backup can be made of it.
func fullAuditLog(w *world) func() {
	r := w.of("leasesvc")[1]
	path := w.auditLog(r.Name)
	// A backup cannot replace a folder that is not empty.
	w.must(os.MkdirAll(filepath.Join(path+".1", "occupied"), 0o700))
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	w.must(err)
	_, err = file.Write(make([]byte, 1<<20))
	w.must(errors.Join(err, file.Close()))
	// The process counts what it writes itself, so it is started again.
	w.must(r.Stop())
	w.mustStart(r)
	stranger := w.client("stranger")
	stop := w.repeat(time.Second, func(ctx context.Context) {
		conn, err := rpcclient.Dial(r.GRPC, rpcclient.Config{TLS: stranger}, slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, _ = leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{Parent: "namespaces/-"}) // refused, which is recorded
	})
	return func() {
		stop()
		w.must(os.RemoveAll(path + ".1"))
	}
}

func terminatingService(w *world) func() {
	ctx := context.Background()
	services := w.kube.CoreV1().Services("default")
	patch := func(finalizers string) error {
		_, err := services.Patch(ctx, "kubernetes", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		return err
	}
	w.must(patch(`["example.com/kept"]`))
	w.must(services.Delete(ctx, "kubernetes", metav1.DeleteOptions{}))
	return func() { w.must(patch("[]")) }
}

// refusedRepair deletes the IPAddress of a Service, and a person applies the plan that makes it
// again.
func refusedRepair(w *world) func() {
	ctx := context.Background()
	_, with := w.fleet.Services()
	_, err := w.fleet.DeleteAddress(ctx, with[1])
	w.must(err)
	leads, _ := w.leader("bootstrapsvc")
	client := bootstrapv1.NewRepairServiceClient(w.dial(leads, w.client("operator")))
	var plan *bootstrapv1.RepairPlan
	w.await(time.Minute, func(ctx context.Context) error {
		made, err := client.CreateRepairPlan(ctx, &bootstrapv1.CreateRepairPlanRequest{})
		if plan = made.GetRepairPlan(); err == nil && len(plan.GetSteps()) == 0 {
			err = errors.New("the plan has no step")
		}
		return err
	})
	stop := w.refuse("bootstrapsvc", faultproxy.Resource("ipaddresses", "create"), 403, metav1.StatusReasonForbidden)
	_, err = client.ApplyRepairPlan(ctx, &bootstrapv1.ApplyRepairPlanRequest{Name: plan.GetName(), Etag: plan.GetEtag()})
	w.Logf("the repair was refused: %v", err)
	return func() {
		stop()
		w.must(w.fleet.RestoreAddress(ctx, with[1]))
	}
}

// refusedAutomaticRepair deletes the IPAddress of a Service while bootstrapsvc repairs by itself.
// The repair succeeds after the fault, without help.
func refusedAutomaticRepair(w *world) func() {
	ctx := context.Background()
	restart := func(autoRepair string) {
		for _, r := range w.of("bootstrapsvc") {
			w.must(r.Stop())
			r.Change(func(c *childprocess.Config) { c.Args = append(c.Args, "--auto-repair="+autoRepair) })
			w.mustStart(r)
			w.await(startTimeout, w.works)
		}
	}
	restart("safe")
	stop := w.refuse("bootstrapsvc", faultproxy.Resource("ipaddresses", "create"), 403, metav1.StatusReasonForbidden)
	_, with := w.fleet.Services()
	address, err := w.fleet.DeleteAddress(ctx, with[1])
	w.must(err)
	return func() {
		stop()
		w.await(endTime, func(ctx context.Context) error {
			_, err := w.kube.NetworkingV1().IPAddresses().Get(ctx, address, metav1.GetOptions{})
			return err
		})
		restart("off")
	}
}

const (
	portServices    = 26
	portsPerService = 100
)

func manyNodePorts(w *world) func() {
	ctx := context.Background()
	name := func(i int) string { return fmt.Sprintf("ports-%02d", i) }
	for i := range portServices {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name(i)}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
		for port := range portsPerService {
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
				Name: fmt.Sprintf("p%d", port), Port: int32(1000 + port), TargetPort: intstr.FromInt32(80),
			})
		}
		_, err := w.kube.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
		w.must(err)
	}
	return func() {
		for i := range portServices {
			w.must(w.kube.CoreV1().Services(namespace).Delete(ctx, name(i), metav1.DeleteOptions{}))
		}
	}
}

func agentEnds(w *world) func() {
	node := w.fleet.Nodes()[0]
	w.die(node)
	ctx, end := context.WithCancel(context.Background())
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		for ; ctx.Err() == nil; testkit.Pause(ctx, time.Second) {
			if err := w.fleet.RenewLease(ctx, agent.Holder{Class: "node", Name: node}); err != nil && ctx.Err() == nil {
				w.Logf("renew the Lease of %s: %v", node, err)
			}
		}
	})
	return func() {
		end()
		kubelet.Wait()
		w.live(node, "boot-after-"+w.stamp())
	}
}

func refusedEvictions(w *world) func() {
	ctx := context.Background()
	stop := w.refuse("leasesvc", func(r faultproxy.Request) bool {
		return r.Resource == "pods" && (r.Verb == "delete" || r.Subresource == "eviction")
	}, 500, metav1.StatusReasonInternalError)
	node := w.fleet.Nodes()[1]
	patch := func(taints string) {
		_, err := w.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"taints":`+taints+`}}`), metav1.PatchOptions{})
		w.must(err)
	}
	patch(`[{"key":"example.com/empty","effect":"NoExecute"}]`)
	return func() {
		stop()
		w.await(time.Minute, func(ctx context.Context) error {
			due, err := w.metrics.Now(ctx, `sum(trivet_taint_eviction_pods{state="due"}) > 0`)
			if err == nil && len(due) > 0 {
				err = fmt.Errorf("%v Pods are due", due[0].Last)
			}
			return err
		})
		patch("[]")
	}
}

func waitingServices(w *world) func() {
	ctx := context.Background()
	var stops []func()
	for _, r := range w.of("slicesvc") {
		stops = append(stops, r.ToKube.Hang(faultproxy.Resource("endpointslices", "create", "update", "patch")))
	}
	name := func(i int) string { return fmt.Sprintf("waiting-%03d", i) }
	const count = 150
	for i := range count {
		_, err := w.kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name(i)},
			Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": name(i)}, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		w.must(err)
	}
	return func() {
		each(stops)
		for i := range count {
			w.must(w.kube.CoreV1().Services(namespace).Delete(ctx, name(i), metav1.DeleteOptions{}))
		}
	}
}

// rival deletes the endpoints of slices of ten Services as soon as slicesvc has written them.
func rival(w *world) func() {
	all, _ := w.fleet.Services()
	chosen := map[string]bool{}
	for _, service := range all[:min(10, len(all))] {
		chosen[filepath.Base(service)] = true
	}
	slices := w.kube.DiscoveryV1().EndpointSlices(namespace)
	return w.repeat(200*time.Millisecond, func(ctx context.Context) {
		list, err := slices.List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		for i := range list.Items {
			slice := &list.Items[i]
			if !chosen[slice.Labels["kubernetes.io/service-name"]] || len(slice.Endpoints) == 0 {
				continue
			}
			slice.Endpoints = nil
			if _, err := slices.Update(ctx, slice, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
				w.Error(err)
			}
		}
	})
}

// stamp makes a name unique.
func (w *world) stamp() string { return fmt.Sprint(time.Now().UnixNano()) }
