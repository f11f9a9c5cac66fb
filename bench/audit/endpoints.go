package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	// frozenTarget is the time to remove a server that listens and does not answer.
	frozenTarget = 15 * time.Second
	// killedTarget is the time to remove a server whose process is killed.
	killedTarget = term.DefaultTTL + time.Second
	// lookEvery is the interval between two reads of the published endpoints. settled is the time
	// that a state must last before a fault.
	lookEvery = 20 * time.Millisecond
	settled   = 2 * time.Second
	// removalTimeout bounds the wait for a server to be removed or published.
	removalTimeout = 90 * time.Second
)

// fault is a fault of one of two kube-apiservers, with its reversal.
type fault struct {
	name    string
	target  time.Duration
	inject  func(context.Context, *controlPlane) error
	restore func(context.Context, *controlPlane) error
	// note explains upstream's figure.
	note string
}

func faults() []fault {
	restart := func(ctx context.Context, p *controlPlane) error { return p.restart(ctx) }
	return []fault{{
		name: "a kube-apiserver is killed and its sidecar lives", target: killedTarget,
		inject: func(_ context.Context, p *controlPlane) error { p.server.Kill(); return nil }, restore: restart,
	}, {
		name: "a machine loses its power: kube-apiserver and sidecar are killed", target: killedTarget,
		inject: func(_ context.Context, p *controlPlane) error { p.server.Kill(); p.killSidecar(); return nil }, restore: restart,
	}, {
		name: "a kube-apiserver is frozen: it accepts connections and does not answer", target: frozenTarget,
		inject:  func(_ context.Context, p *controlPlane) error { return p.server.Freeze() },
		restore: func(_ context.Context, p *controlPlane) error { return p.server.Thaw() },
		note:    ", because a frozen process does not renew either; one that renews and does not answer stays in",
	}}
}

// measureEndpoints injects faults in two clusters concurrently: in one bootstrapsvc writes the
// endpoints, in the other kube-apiserver's lease reconciler.
func measureEndpoints(ctx context.Context, b *bench) ([]row, error) {
	rounds := either(b, 5, 1)
	b.progress("endpoints, %d rounds of %d faults…", rounds, len(faults()))
	var ours, upstream [][]time.Duration
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		ours, err = b.removalTimes(bothCtx, rounds, false)
		return err
	})
	both.Go(func() (err error) {
		upstream, err = b.removalTimes(bothCtx, rounds, true)
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	var rows []row
	for i, f := range faults() {
		theirs := sorted(upstream[i])
		rows = append(rows, worstOf(f.name+": until its address is out of the endpoints", ours[i], f.target).
			than(fmt.Sprintf("kube-apiserver's lease reconciler (median %s%s)", theirs.median(), f.note), theirs.worst()))
	}
	return rows, nil
}

// controlPlane is two kube-apiservers and a third one without faults, through which the published
// endpoints are read.
type controlPlane struct {
	*bench
	cluster  *devcluster.Cluster
	kube     kubernetes.Interface
	upstream bool // kube-apiserver itself writes the endpoints
	server   *devcluster.Peer
	// first and sidecar belong to the server without faults and to the other one. They are nil if
	// not running.
	first, sidecar *server.Server
	want           []string // published while all servers are healthy
}

// Published addresses. They are not reachable: kube-apiserver refuses to publish loopback.
const (
	firstAddress, faultyAddress = "10.99.0.1", "10.99.0.2"
	// publishedPort is the published port of all servers. The Service has only one target port.
	publishedPort = "--apiserver-port=6443"
)

// removalTimes returns the removal times of every fault, by round.
func (b *bench) removalTimes(ctx context.Context, rounds int, upstream bool) (took [][]time.Duration, err error) {
	p := &controlPlane{bench: b, upstream: upstream, want: []string{firstAddress, faultyAddress}}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	took = make([][]time.Duration, len(faults()))
	for range rounds {
		for i, f := range faults() {
			if err := p.waitForPublished(ctx, p.want); err != nil {
				return nil, err
			}
			pause(ctx, settled)
			began := time.Now()
			if err := f.inject(ctx, p); err != nil {
				return nil, err
			}
			if err := p.waitForPublished(ctx, []string{firstAddress}); err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			took[i] = append(took[i], time.Since(began))
			b.progress("upstream %t: %s: %v", upstream, f.name, took[i][len(took[i])-1].Round(time.Millisecond))
			if err := f.restore(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}

func (p *controlPlane) start(ctx context.Context) (err error) {
	cfg := devcluster.Config{AdvertiseAddress: firstAddress}
	if p.upstream {
		cfg.APIServerArgs = []string{"--endpoint-reconciler-type=lease"}
	}
	if p.cluster, err = devcluster.Start(ctx, cfg); err != nil {
		return err
	}
	if p.kube, err = administrator(p.cluster.RESTConfig()); err != nil {
		return err
	}
	if p.server, err = p.cluster.AddAPIServer(ctx, devcluster.PeerConfig{AdvertiseAddress: faultyAddress}); err != nil || p.upstream {
		return err
	}
	if p.first, err = p.startSidecar(ctx, p.cluster.Kubeconfig(), firstAddress); err != nil {
		return err
	}
	p.sidecar, err = p.startSidecar(ctx, p.server.Kubeconfig(), faultyAddress)
	return err
}

// startSidecar starts a bootstrapsvc that reaches Kubernetes only through its kube-apiserver.
func (p *controlPlane) startSidecar(ctx context.Context, kubeconfig, address string) (*server.Server, error) {
	return server.Run(ctx, server.Config{
		ControlPlane: p.cluster, Service: "bootstrapsvc", BinDir: p.binDir, Log: filepath.Join(p.logDir, "beside-"+address+".log"),
		Args: []string{"--kubeconfig=" + kubeconfig, "--apiserver-advertise-address=" + address, publishedPort},
	})
}

func (p *controlPlane) killSidecar() {
	if p.sidecar != nil {
		p.sidecar.Kill()
		p.sidecar = nil
	}
}

func (p *controlPlane) killFirst() {
	if p.first != nil {
		p.first.Kill()
	}
}

// restart starts the killed processes.
func (p *controlPlane) restart(ctx context.Context) (err error) {
	if err := p.server.Start(); err != nil || p.upstream || p.sidecar != nil {
		return err
	}
	p.sidecar, err = p.startSidecar(ctx, p.server.Kubeconfig(), faultyAddress)
	return err
}

func (p *controlPlane) stop() error {
	p.killFirst()
	p.killSidecar()
	if p.cluster == nil {
		return nil
	}
	return p.cluster.Stop()
}

// waitForPublished waits until exactly these addresses are published.
func (p *controlPlane) waitForPublished(ctx context.Context, want []string) error {
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	for {
		has, err := published(ctx, p.kube)
		if err == nil && slices.Equal(has, want) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("published are %v, want %v: %w", has, want, errors.Join(ctx.Err(), err))
		}
		pause(ctx, lookEvery)
	}
}

func published(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	found, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, slice := range found.Items {
		for _, endpoint := range slice.Endpoints {
			addresses = append(addresses, endpoint.Addresses...)
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}
