package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/test/internal/promtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var (
	prometheusPath = flag.String("alerts.prometheus", "", "the program prometheus; without it the test of the alerts is skipped")
	rulesDir       = flag.String("alerts.rules", "", "folder with rules whose durations are divided by a factor")
)

const (
	// alertTimeout bounds the time until an alert fires or ends, on a loaded machine.
	alertTimeout = 3 * time.Minute
	// watchOn is how long a fault lasts after its alert has fired, and a quiet operation after its
	// end, so that others may fire.
	watchOn = 10 * time.Second
)

// nodeFault is a fault of a machine or of a server on it. Without an alert none may fire.
type nodeFault struct {
	alert, what string
	also        map[string]string // alerts that may fire too, each with a reason
	inject      func(*testing.T, *fixture) (undo func())
}

func nodeFaults() []nodeFault {
	beside := map[string]string{
		"TrivetReplicaUnready":    "the bootstrapsvc beside a frozen kube-apiserver does not lead",
		"TrivetReplicaDown":       "its server cannot ask the frozen kube-apiserver about Prometheus",
		"TrivetAccessReviewsFail": "its server cannot ask the frozen kube-apiserver about callers",
	}
	return []nodeFault{
		{what: "the power of w1 is cut and returns", inject: func(t *testing.T, f *fixture) func() {
			node := f.node(t, "w1")
			mustDo(t, node.CutPower(t.Context()))
			// The grace of 20 s passes, and the Node is declared.
			pauseFor(t, 40*time.Second)
			return func() { mustDo(t, node.Boot(context.Background())) }
		}},
		{what: "the kubelet of w2 is stopped and started", inject: func(t *testing.T, f *fixture) func() {
			node := f.node(t, "w2")
			mustDo(t, node.KillKubelet())
			pauseFor(t, 30*time.Second)
			return func() { mustDo(t, node.ReleaseKubelet()) }
		}},
		{what: "leasesvc is killed, and the kubelet starts it again", inject: func(t *testing.T, f *fixture) func() {
			mustDo(t, f.node(t, "cp1").Signal("leasesvc", syscall.SIGKILL))
			return func() {}
		}, also: map[string]string{
			"TrivetServerDown": "the kubelet needs some seconds, which is more than the scaled two minutes", "TrivetNoLeader": "a session lasts five seconds, which is more than the scaled minute",
		}},
		{alert: "TrivetServerDown", what: "the static Pod of leasesvc is removed", inject: removedPod("cp1", "leasesvc"),
			also: map[string]string{"TrivetReplicaDown": "it is the only replica"}},
		{alert: "TrivetReplicaDown", what: "the static Pod of one of two bootstrapsvc is removed", inject: removedPod("cp2", "bootstrapsvc"),
			also: map[string]string{"TrivetBaselineReport": "the kube-apiserver without a bootstrapsvc stays an endpoint, which the other one reports"}},
		{alert: "TrivetAPIServerNotReady", what: "kube-apiserver of cp2 is frozen", also: beside, inject: func(t *testing.T, f *fixture) func() {
			node := f.node(t, "cp2")
			mustDo(t, node.Signal("kube-apiserver", syscall.SIGSTOP))
			return func() { mustDo(t, node.Signal("kube-apiserver", syscall.SIGCONT)) }
		}},
		{alert: "TrivetCertificateEnds", what: "slicesvc has a certificate of twelve hours", inject: shortLife(12 * time.Hour),
			also: map[string]string{"TrivetCertificateExpires": "twelve hours are less than seven days"}},
		{alert: "TrivetCertificateExpires", what: "slicesvc has a certificate of three days", inject: shortLife(72 * time.Hour)},
	}
}

// TestAlerts_OnNodes injects faults of machines and of static Pods while Prometheus scrapes the
// servers of the cluster. test/alerts has the faults that need no node.
func TestAlerts_OnNodes(t *testing.T) {
	if *prometheusPath == "" || *rulesDir == "" {
		t.Skip("without -alerts.prometheus and -alerts.rules; make test-alerts-nodes gives both")
	}
	f := sharedCluster(t)
	ca, cert, key := f.Credentials()
	server := promtest.Start(t, promtest.Config{
		Program: *prometheusPath, Rules: *rulesDir, Address: testkit.FreeAddress(t),
		Files: identity.Files{CAFile: ca, CertFile: cert, KeyFile: key}, Targets: f.scraped(t),
	})
	mustEventually(t, time.Minute, server.Ready)
	for _, fault := range nodeFaults() {
		name := fault.alert
		if name == "" {
			name = fault.what
		}
		t.Run(name, func(t *testing.T) { f.tryFault(t, server, fault) })
	}
}

func (f *fixture) tryFault(t *testing.T, server *promtest.Server, fault nodeFault) {
	if err := server.AwaitNothing(t.Context(), alertTimeout); err != nil {
		t.Fatal("before the fault: ", err)
	}
	began := time.Now()
	undo := sync.OnceFunc(fault.inject(t, f))
	defer undo()
	var fired, ended time.Duration
	var err error
	if fault.alert != "" {
		if fired, err = server.AwaitFiring(t.Context(), fault.alert, alertTimeout); err != nil {
			t.Error(err)
		}
		pauseFor(t, watchOn)
	}
	undo()
	undone := time.Now()
	if fault.alert == "" {
		pauseFor(t, watchOn)
	}
	if err := server.AwaitNothing(t.Context(), alertTimeout); err != nil {
		t.Error("after the fault: ", err)
	}
	ended = time.Since(undone)
	if err := f.awaitHealthy(t.Context()); err != nil {
		t.Error(err)
	}
	others, err := server.Judge(t.Context(), began, time.Now(), promtest.Expectation{
		Alert: fault.alert, Also: fault.also, RealTime: map[string]time.Duration{"TrivetNoLeader": time.Minute, "TrivetSliceWatchSilent": time.Minute},
	})
	if err != nil {
		t.Error(err)
	}
	figure(t, fmt.Sprintf("alert %q: %s", fault.alert, fault.what),
		fmt.Sprintf("fired after %v, ended after %v, others %v", fired.Round(time.Second), ended.Round(time.Second), others), alertTimeout.String())
}

// scraped are the servers. Their metrics are on the loopback of each machine, so a relay leads
// there from the loopback of this one.
func (f *fixture) scraped(t *testing.T) (targets []promtest.Target) {
	for _, s := range []struct{ job, node, address string }{
		{"leasesvc", "cp1", "127.0.0.1:7611"}, {"bootstrapsvc", "cp1", "127.0.0.1:7612"}, {"bootstrapsvc", "cp2", "127.0.0.1:7612"},
		{"slicesvc", "cp1", "127.0.0.1:7613"}, {"gateway", "cp1", "127.0.0.1:7610"},
	} {
		targets = append(targets, promtest.Target{Job: s.job, Pod: s.job + "-" + s.node, Address: f.relayTo(t, s.node, s.address)})
	}
	return targets
}

// relayTo listens on loopback and connects from the network of a node.
func (f *fixture) relayTo(t *testing.T, node, address string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { f.splice(ctx, near, node, address) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		relays.Wait()
	})
	return listener.Addr().String()
}

func (f *fixture) splice(ctx context.Context, near net.Conn, node, address string) {
	defer near.Close()
	dialing, cancel := context.WithTimeout(ctx, promtest.Period)
	defer cancel()
	far, err := f.DialFrom(dialing, node, address)
	if err != nil {
		return
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _ = errors.Join(near.Close(), far.Close()) })()
	var copies sync.WaitGroup
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		copies.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].Close()
		})
	}
	copies.Wait()
}

func removedPod(node, pod string) func(*testing.T, *fixture) func() {
	return func(t *testing.T, f *fixture) func() {
		n := f.node(t, node)
		manifest, err := n.Pod(pod)
		mustDo(t, err)
		mustDo(t, n.RemovePod(pod))
		return func() { mustDo(t, n.SetPod(pod, manifest)) }
	}
}

// shortLife gives slicesvc a certificate with a lifetime, and then its former one.
func shortLife(lifetime time.Duration) func(*testing.T, *fixture) func() {
	return func(t *testing.T, f *fixture) func() {
		base := filepath.Join(f.node(t, "cp1").RootDir(), "/etc/trivet/slicesvc/tls")
		former := certs.KeyPair{}
		var certErr, keyErr error
		former.CertPEM, certErr = os.ReadFile(base + ".crt")
		former.KeyPEM, keyErr = os.ReadFile(base + ".key")
		pair, err := f.authority(t, "trivet-ca").Issue(certs.ServerLeaf("slicesvc", roles.Namespace, "cluster.local"), lifetime, time.Now())
		mustDo(t, errors.Join(certErr, keyErr, err))
		write := func(pair certs.KeyPair) {
			mustDo(t, errors.Join(replace(base+".key", pair.KeyPEM), replace(base+".crt", pair.CertPEM)))
		}
		write(pair)
		return func() { write(former) }
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pauseFor waits for real time to pass, not for a condition.
func pauseFor(t *testing.T, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.Context().Done():
	case <-timer.C:
	}
}
