package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	fleetPace      = 10 * time.Second
	fleetNamespace = "trivet-bench"
	// ackTarget is the allowed 99th percentile of the time until an answer.
	ackTarget = 20 * time.Millisecond
	// creation bounds the time of the first write of every Lease.
	creation = 10 * time.Minute
)

// fleetClass is the class of the fleet's holders. They are no Nodes, because the creation of
// 130,000 Nodes would take longer than the measurement. Their Leases are written like those of
// nodes.
const fleetClass = `[{"name":"agent","namespace":"` + fleetNamespace + `","heartbeatInterval":"10s","grace":"40s"}]`

// fleetSize is the size of a fleet, and the refresh interval of an unchanged Lease. The fleet is
// observed for exactly one such interval. In a shorter time the number of due Leases would vary; in
// this one, each is due at most once.
type fleetSize struct {
	connections, holders int // holders of each connection
	refresh              time.Duration
}

// fleet is the measurement of a fleet.
type fleet struct {
	created time.Duration // until every holder had its Lease
	acks    []time.Duration
	writes  float64 // of Leases
	// changes are the writes, as leasesvc counts them, for a holder that expired or came back.
	changes float64
	ours    float64 // cores used by leasesvc
	others  float64 // cores used by kube-apiserver and etcd
	anew    int64   // reopened streams
}

// measureFleet sends beats of many holders to leasesvc, which writes their Leases to a real
// kube-apiserver.
func measureFleet(ctx context.Context, b *bench) ([]row, error) {
	size := either(b, fleetSize{connections: 1000, holders: 130, refresh: 5 * time.Minute}, fleetSize{connections: 200, holders: 50, refresh: 30 * time.Second})
	holders := size.connections * size.holders
	var f fleet
	err := b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		kube, err := administrator(cluster.RESTConfig())
		if err != nil {
			return err
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetNamespace}}
		if _, err := kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return err
		}
		replica, err := b.leasesvc(ctx, cluster, "--classes="+fleetClass, "--write-policy=on-change",
			"--lease-refresh-interval="+size.refresh.String())
		if err != nil {
			return err
		}
		defer replica.Stop()
		f, err = b.runFleet(ctx, kube, replica, size)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(f.acks)
	p99, seconds := quantile(f.acks, 0.99), size.refresh.Seconds()
	what := fmt.Sprintf("%s holders at %v over %s connections beside kube-apiserver and etcd, on-change, for %v",
		thousands(float64(holders)), fleetPace, thousands(float64(size.connections)), size.refresh)
	return []row{
		{
			what: what + ": answered after, p50 / p99 / worst", target: "p99 ≤ " + formatDuration(ackTarget),
			ours: fmt.Sprintf("%s / %s / %s; %.2f cores; %d streams opened anew",
				formatDuration(quantile(f.acks, 0.5)), formatDuration(p99), formatDuration(quantile(f.acks, 1)), f.ours, f.anew),
			beside: fmt.Sprintf("kube-apiserver and etcd: %.2f cores; kubelets would write %s Leases/s", f.others,
				thousands(float64(holders)/kubeletPace.Seconds())),
			missed: p99 > ackTarget,
		},
		{
			what:   "the same: Leases that kube-apiserver received, without those of expired or returned holders",
			target: fmt.Sprintf("≤ %.1f/s (N/%.0f)", float64(holders)/seconds, seconds),
			ours: fmt.Sprintf("%.1f/s, and %.0f of such holders in all; all Leases were there after %s",
				(f.writes-f.changes)/seconds, f.changes, formatDuration(f.created)),
			missed: f.writes-f.changes > float64(holders),
		},
	}, nil
}

// runFleet opens the fleet's streams, waits for all Leases, and measures.
func (b *bench) runFleet(ctx context.Context, kube kubernetes.Interface, replica *server.Server, size fleetSize) (f fleet, err error) {
	pids, err := childprocess.Children("etcd", "kube-apiserver")
	if err != nil {
		return f, err
	}
	var acks durations
	streams := &sender{class: "agent", holders: size.holders}
	begin := time.Now()
	streamSet, err := openStreamSet(ctx, replica.GRPC, plaintext(), acks.time(streams.open), size.connections, 1)
	if err != nil {
		return f, err
	}
	defer streamSet.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beating errgroup.Group
	beating.Go(func() error {
		_, err := streamSet.beat(ctx, 2*creation+size.refresh, fleetPace)
		if err != nil {
			cancel()
		}
		return err
	})
	defer func() {
		cancel()
		err = errors.Join(err, beating.Wait())
	}()
	if err := awaitLeases(ctx, kube, size.connections*size.holders); err != nil {
		return f, err
	}
	f.created = time.Since(begin)
	b.progress("all Leases are there after %v", f.created)
	pause(ctx, fleetPace)
	acks.reset()
	before, err := countWrites(ctx, kube, replica)
	if err != nil {
		return f, err
	}
	var ours time.Duration
	others, err := childprocess.Spent(func() (err error) {
		ours, err = replica.Process().Spent(func() error {
			pause(ctx, time.Until(before.at.Add(size.refresh)))
			return ctx.Err()
		})
		return err
	}, pids...)
	if err != nil {
		return f, err
	}
	f.acks, f.anew = acks.reset(), streams.anew.Load()
	after, err := countWrites(ctx, kube, replica)
	f.writes, f.changes = after.writes-before.writes, after.changes-before.changes
	f.ours, f.others = ours.Seconds()/size.refresh.Seconds(), others.Seconds()/size.refresh.Seconds()
	return f, err
}

// writeCount is the number of Lease writes at a time.
type writeCount struct {
	// at is the time of the request for the counters. Writes until the answer are included. That
	// error is similar in both readings.
	at              time.Time
	writes, changes float64
}

func countWrites(ctx context.Context, kube kubernetes.Interface, replica *server.Server) (c writeCount, err error) {
	c.at = time.Now()
	if c.writes, err = leaseWrites(ctx, kube); err != nil {
		return c, err
	}
	text, err := fetch(ctx, "http://"+replica.Admin+"/metrics")
	if err != nil {
		return c, err
	}
	for _, reason := range []string{"expired", "recovered"} {
		for _, verb := range []string{"create", "update"} {
			// A counter that was never increased has no sample.
			n, err := sumOf(text, "trivet_lease_writes_total", fmt.Sprintf("reason=%q", reason), fmt.Sprintf("verb=%q", verb))
			if err == nil {
				c.changes += n
			}
		}
	}
	return c, nil
}

// awaitLeases waits until the number of Leases has been created.
func awaitLeases(ctx context.Context, kube kubernetes.Interface, holders int) error {
	for end := time.Now().Add(creation); ; {
		text, err := apiServerMetrics(ctx, kube)
		if err != nil {
			return err
		}
		// There is no such sample before the first creation.
		created, err := sumOf(text, "apiserver_request_total", `resource="leases"`, `verb="POST"`, `code="201"`)
		if err == nil && created >= float64(holders) {
			return nil
		}
		if !sleepUntil(ctx, time.Now().Add(time.Second), end) {
			return fmt.Errorf("after %v %.0f of %d Leases have been created", creation, created, holders)
		}
	}
}

// leaseWrites returns the number of Lease writes that kube-apiserver has received, with any result.
func leaseWrites(ctx context.Context, kube kubernetes.Interface) (float64, error) {
	text, err := apiServerMetrics(ctx, kube)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, verb := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		// An unused verb has no sample. POST was used.
		n, err := sumOf(text, "apiserver_request_total", `resource="leases"`, fmt.Sprintf("verb=%q", verb))
		if err != nil && verb == "POST" {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func apiServerMetrics(ctx context.Context, kube kubernetes.Interface) (string, error) {
	text, err := kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	return string(text), err
}

// durations collects the durations of heartbeats of many streams.
type durations struct {
	mu    sync.Mutex // guards times
	times []time.Duration
}

// time wraps an opener so that the durations of its heartbeats are collected.
func (s *durations) time(open opener) opener {
	return func(ctx context.Context, connection *grpc.ClientConn, name string) (func() error, error) {
		beat, err := open(ctx, connection, name)
		return func() error {
			begin := time.Now()
			err := beat()
			took := time.Since(begin)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.times = append(s.times, took)
			return err
		}, err
	}
}

// reset returns and clears the collected durations.
func (s *durations) reset() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := s.times
	s.times = nil
	return times
}
