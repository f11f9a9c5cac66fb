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

	"github.com/trivet-dev/trivet/bench/internal/child"
	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/term"
)

const (
	// hungTarget is how soon a server must be out that listens and does not answer.
	hungTarget = 15 * time.Second
	// deadTarget is how soon one must be out whose process is gone.
	deadTarget = term.DefaultTTL + time.Second
	// lookEvery is the time between two looks at what is published, and settled is how long a state
	// must last before a fault.
	lookEvery = 20 * time.Millisecond
	settled   = 2 * time.Second
	// outTimeout bounds the wait for a server to be out or in.
	outTimeout = 90 * time.Second
)

// fault is what strikes one of two kube-apiservers, and what makes it well again.
type fault struct {
	name    string
	target  time.Duration
	strike  func(context.Context, *plane) error
	restore func(context.Context, *plane) error
	// note explains upstream's figure.
	note string
}

func faults() []fault {
	restart := func(ctx context.Context, p *plane) error { return p.restart(ctx) }
	return []fault{{
		name: "a kube-apiserver is killed, and what is beside it lives", target: deadTarget,
		strike: func(_ context.Context, p *plane) error { p.server.Kill(); return nil }, restore: restart,
	}, {
		name: "a machine loses its power: kube-apiserver and what is beside it are killed", target: deadTarget,
		strike: func(_ context.Context, p *plane) error { p.server.Kill(); p.killSidecar(); return nil }, restore: restart,
	}, {
		name: "a kube-apiserver is frozen: it listens and does not answer", target: hungTarget,
		strike:  func(_ context.Context, p *plane) error { return p.server.Freeze() },
		restore: func(_ context.Context, p *plane) error { return p.server.Thaw() },
		note:    ", because a frozen process does not renew either; one that renews and does not answer stays in",
	}}
}

// measureEndpoints strikes in two clusters at the same time: ours, where bootstrapsvc keeps the
// endpoints, and one where kube-apiserver's own lease reconciler does.
func measureEndpoints(ctx context.Context, b *bench) ([]row, error) {
	rounds := either(b, 5, 1)
	b.say("endpoints, %d rounds of %d faults…", rounds, len(faults()))
	var ours, upstream [][]time.Duration
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		ours, err = b.strikes(bothCtx, rounds, false)
		return err
	})
	both.Go(func() (err error) {
		upstream, err = b.strikes(bothCtx, rounds, true)
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	var rows []row
	for i, f := range faults() {
		theirs := sorted(upstream[i])
		rows = append(rows, worstOf(f.name+": until it is out of the endpoints", ours[i], f.target).
			than(fmt.Sprintf("kube-apiserver's lease reconciler (median %s%s)", theirs.median(), f.note), theirs.worst()))
	}
	return rows, nil
}

// plane is two kube-apiservers beside the one that nothing strikes and that tells what is
// published.
type plane struct {
	*bench
	cluster  *devcluster.Cluster
	kube     kubernetes.Interface
	upstream bool // kube-apiserver keeps the endpoints itself
	server   *devcluster.Peer
	// first and sidecar are beside the server that nothing strikes and the other one; nil while
	// there is none.
	first, sidecar *child.Server
	want           []string // what is published while all are well
}

// Addresses in the endpoints. Nothing leads there; kube-apiserver refuses to publish loopback.
const (
	firstAddress, struckAddress = "10.99.0.1", "10.99.0.2"
	// publishedPort is under which port all servers are said to be reached: the Service has but
	// one.
	publishedPort = "--apiserver-port=6443"
)

// strikes returns for every fault how long it took in each round.
func (b *bench) strikes(ctx context.Context, rounds int, upstream bool) (took [][]time.Duration, err error) {
	p := &plane{bench: b, upstream: upstream, want: []string{firstAddress, struckAddress}}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	took = make([][]time.Duration, len(faults()))
	for range rounds {
		for i, f := range faults() {
			if err := p.becomes(ctx, p.want); err != nil {
				return nil, err
			}
			pause(ctx, settled)
			began := time.Now()
			if err := f.strike(ctx, p); err != nil {
				return nil, err
			}
			if err := p.becomes(ctx, []string{firstAddress}); err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			took[i] = append(took[i], time.Since(began))
			b.say("upstream %t: %s: %v", upstream, f.name, took[i][len(took[i])-1].Round(time.Millisecond))
			if err := f.restore(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}

func (p *plane) start(ctx context.Context) (err error) {
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
	if p.server, err = p.cluster.AddAPIServer(ctx, devcluster.PeerConfig{AdvertiseAddress: struckAddress}); err != nil || p.upstream {
		return err
	}
	if p.first, err = p.startSidecar(ctx, p.cluster.Kubeconfig(), firstAddress); err != nil {
		return err
	}
	p.sidecar, err = p.startSidecar(ctx, p.server.Kubeconfig(), struckAddress)
	return err
}

// startSidecar starts a bootstrapsvc that reaches Kubernetes through the kube-apiserver beside it
// alone.
func (p *plane) startSidecar(ctx context.Context, kubeconfig, address string) (*child.Server, error) {
	return child.StartServer(ctx, p.cluster, child.ServerConfig{
		Name: "bootstrapsvc", BinDir: p.binDir, Log: filepath.Join(p.logDir, "beside-"+address+".log"),
		Args: []string{"--kubeconfig=" + kubeconfig, "--apiserver-advertise-address=" + address, publishedPort},
	})
}

func (p *plane) killSidecar() {
	if p.sidecar != nil {
		p.sidecar.Kill()
		p.sidecar = nil
	}
}

func (p *plane) killFirst() {
	if p.first != nil {
		p.first.Kill()
	}
}

// restart starts what was killed.
func (p *plane) restart(ctx context.Context) (err error) {
	if err := p.server.Start(); err != nil || p.upstream || p.sidecar != nil {
		return err
	}
	p.sidecar, err = p.startSidecar(ctx, p.server.Kubeconfig(), struckAddress)
	return err
}

func (p *plane) stop() error {
	p.killFirst()
	p.killSidecar()
	if p.cluster == nil {
		return nil
	}
	return p.cluster.Stop()
}

// becomes waits until exactly these addresses are published.
func (p *plane) becomes(ctx context.Context, want []string) error {
	ctx, cancel := context.WithTimeout(ctx, outTimeout)
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
