package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// cost is the cost of one idle replica, as an average over the replicas of a group.
type cost struct {
	requests float64       // per second: to etcd, or to kube-apiserver with client-go
	cpu      time.Duration // per second
}

// measureRest measures the idle costs of every mechanism with one shard and with many,
// concurrently, each on its own cluster.
func measureRest(ctx context.Context, cfg config, results map[mechanism]*result) error {
	var mu sync.Mutex // guards what results point to
	all, ctx := errgroup.WithContext(ctx)
	for m, r := range results {
		r.rest = map[int]cost{}
		for _, shards := range []int{1, manyShards} {
			all.Go(func() error {
				found, err := restOf(ctx, cfg, candidateConfig{Mechanism: m, Group: "rest", Shards: shards})
				if err != nil {
					return fmt.Errorf("%s with %d shards: %w", m, shards, err)
				}
				mu.Lock()
				defer mu.Unlock()
				r.rest[shards] = found
				return nil
			})
		}
	}
	return all.Wait()
}

func restOf(ctx context.Context, cfg config, c candidateConfig) (found cost, err error) {
	cluster, err := devcluster.Start(ctx, devcluster.Config{EtcdOnly: c.Mechanism != leases})
	if err != nil {
		return cost{}, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	meter, err := newMeter(cluster)
	if err != nil {
		return cost{}, err
	}
	defer meter.http.CloseIdleConnections()
	err = withGroup(ctx, cluster, c, func(g *group) error {
		if err := g.settle(ctx, 5*time.Second); err != nil {
			return err
		}
		found, err = meter.measure(ctx, g, cfg.rest)
		return err
	})
	return found, err
}

// reading is the total consumption of a group so far.
type reading struct {
	at       time.Time
	requests float64
	cpu      time.Duration
}

// meter reads the consumption of groups.
type meter struct {
	http *http.Client
	etcd string // URL of its metrics
}

func newMeter(cluster *devcluster.Cluster) (*meter, error) {
	var files identity.Files
	files.CAFile, files.CertFile, files.KeyFile = cluster.EtcdFiles()
	tlsIdentity, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	tls := tlsIdentity.TLS()
	return &meter{
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: tls}, Timeout: 10 * time.Second},
		etcd: cluster.EtcdEndpoints()[0] + "/metrics",
	}, nil
}

// measure measures an idle group. It returns an error if a shard moves meanwhile.
func (m *meter) measure(ctx context.Context, g *group, d time.Duration) (cost, error) {
	before, err := m.read(ctx, g)
	if err != nil {
		return cost{}, err
	}
	last := g.lastBegan
	if err := g.settle(ctx, d); err != nil {
		return cost{}, err
	}
	if g.lastBegan != last {
		return cost{}, errors.New("a shard changed hands: this was no rest")
	}
	after, err := m.read(ctx, g)
	if err != nil {
		return cost{}, err
	}
	share := after.at.Sub(before.at).Seconds() * float64(len(g.present))
	return cost{
		requests: (after.requests - before.requests) / share,
		cpu:      time.Duration(float64(after.cpu-before.cpu) / share),
	}, nil
}

func (m *meter) read(ctx context.Context, g *group) (reading, error) {
	now := reading{at: time.Now()}
	for _, p := range g.present {
		used, err := p.cpu()
		if err != nil {
			return reading{}, err
		}
		now.cpu += used
		now.requests += float64(p.requests.Load())
	}
	if g.template.Mechanism == leases {
		return now, nil
	}
	metrics, err := m.scrape(ctx)
	if err != nil {
		return reading{}, err
	}
	now.requests, err = requestsIn(metrics)
	return now, err
}

func (m *meter) scrape(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.etcd, nil)
	if err != nil {
		return "", err
	}
	reply, err := m.http.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", m.etcd, reply.Status)
	}
	return string(body), err
}

// requestsIn returns the number of messages that etcd has received since its start, by its own
// metrics. Each renewal counts, on any stream. The metric also counts the failed receive at the end
// of every stream, which is subtracted.
func requestsIn(metrics string) (float64, error) {
	messages, err := sumOf(metrics, "grpc_server_msg_received_total", "")
	if err != nil {
		return 0, err
	}
	streams, err := sumOf(metrics, "grpc_server_handled_total", `_stream"`)
	return messages - streams, err
}

// sumOf adds up the samples of a counter in Prometheus' text format whose labels contain a text. It
// returns an error if there is none, because the name is wrong or etcd no longer has it.
func sumOf(metrics, name, labelled string) (float64, error) {
	sum, found := 0.0, false
	for line := range strings.Lines(metrics) {
		labels, sample, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !strings.HasPrefix(labels, name+"{") || !strings.Contains(labels, labelled) {
			continue
		}
		value, err := strconv.ParseFloat(sample, 64)
		if err != nil {
			return 0, fmt.Errorf("sample %q: %w", line, err)
		}
		sum, found = sum+value, true
	}
	if !found {
		return 0, fmt.Errorf("etcd's metrics have no %s", name)
	}
	return sum, nil
}
