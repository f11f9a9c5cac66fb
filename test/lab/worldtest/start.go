package worldtest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/test/lab/simulate"
)

// Start is New with Config.Replicas of each service, a gateway, and Config.Agents of simulated
// Nodes. It returns when all of them work.
func Start(t testing.TB, cfg Config) *World {
	t.Helper()
	w := New(t, cfg)
	for n := range cfg.Replicas {
		w.Add(Leasesvc, n, "--shards=8")
		w.Add(Bootstrapsvc, n, "--loops=*,-apiserver-probe,-kubernetes-endpoints", "--apiserver-port=6443")
		w.Add(Slicesvc, n, "--shards=8")
	}
	gateway := w.Add(Gateway, 0, "--http-listen=")
	w.Start()
	w.Operator = w.Dial(gateway)
	fleet := simulate.New(simulate.Config{Nodes: cfg.Agents, Services: 1, Namespace: "world", Seed: 1}, w.Kube, slog.New(slog.DiscardHandler))
	if err := fleet.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, node := range fleet.Nodes() {
		w.Beat(node, "boot-1")
	}
	Await(t, startTimeout, w.Working(w.Operator))
	return w
}

// Replica returns a replica by its number.
func (w *World) Replica(service string, number int) *Replica {
	w.t.Helper()
	name := fmt.Sprintf("%s-%d", service, number)
	i := slices.IndexFunc(w.Replicas, func(r *Replica) bool { return r.Name == name })
	if i < 0 {
		w.t.Fatalf("the world has no %s", name)
	}
	return w.Replicas[i]
}

// Beat lets the agent of a node beat until end is called or the test ends. It reaches leasesvc
// through the proxies, if there are any. While its beats are not acknowledged, it renews the Lease,
// which it reaches without proxies.
func (w *World) Beat(node, boot string) (end func()) {
	w.t.Helper()
	var targets []string
	for _, r := range w.Of(Leasesvc) {
		targets = append(targets, r.GRPC)
	}
	connection := rpcclient.Config{Insecure: true}
	if w.PKI != nil {
		files, err := w.PKI.Files("node-"+node, certs.NodeLeaf(node))
		if err != nil {
			w.t.Fatal(err)
		}
		connection = rpcclient.Config{TLS: files}
	}
	var renew func(context.Context, agent.Holder) error
	if w.Kube != nil {
		renew = nodelease.NewWriter(w.Kube).Renew
	}
	a, err := agent.New(agent.Config{
		Targets: targets, Cluster: w.Name, Name: "world", Holders: []agent.Holder{{Class: "node", Name: node, BootID: boot}},
		Unacknowledged: renew,
		Dial: func(target string) (*grpc.ClientConn, error) { // of Targets, or what a replica advertises
			for _, r := range w.Of(Leasesvc) {
				if r.GRPC == target && r.Calls != nil {
					target = r.Calls.Addr()
				}
			}
			return rpcclient.Dial(target, connection, slog.New(slog.DiscardHandler))
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() { _ = a.Run(ctx) }) // ends with ctx
	end = func() {
		cancel()
		beating.Wait()
	}
	w.t.Cleanup(end)
	return end
}
