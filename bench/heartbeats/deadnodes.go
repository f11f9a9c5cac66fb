package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	// kubeletPace is the interval between two Lease writes of a kubelet.
	kubeletPace = 10 * time.Second
	// leaseGrace is the silence after which a Node whose kubelet writes Leases is marked Unknown,
	// in Trivet and upstream.
	leaseGrace = 50 * time.Second

	streamingTarget = nodeGrace + 500*time.Millisecond
	writingTarget   = leaseGrace + time.Second
	// warmUp is the time before the first node is silenced.
	warmUp = 15 * time.Second
)

// detection has the times from the last beat of the silenced Nodes of one kind until they were
// marked Unknown, and the number of wrongly marked Nodes.
type detection struct {
	times []time.Duration // sorted
	wrong int
}

// measureDeadNodes silences Nodes in turn, in two clusters concurrently. With leasesvc, half of the
// Nodes beat over streams and the kubelets of the other half write Leases. With
// kube-controller-manager, all kubelets write Leases.
func measureDeadNodes(ctx context.Context, b *bench) ([]row, error) {
	nodes := either(b, 300, 60)
	s := either(b, silencing{count: 20, apart: 2 * time.Second}, silencing{count: 4, apart: time.Second})
	var n noticed
	var upstream detection
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		n, err = b.ours(bothCtx, nodes, s)
		return err
	})
	both.Go(func() (err error) {
		upstream, err = b.upstreams(bothCtx, nodes, s)
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	of := func(what string, n detection, target time.Duration) row {
		return row{
			what:   fmt.Sprintf("dead node noticed, %s, from the last sign of life to Ready=Unknown, median / worst of %d", what, len(n.times)),
			target: "worst ≤ " + formatDuration(target), ours: n.String(),
			missed: n.worst() > target || n.wrong > 0,
		}
	}
	beside := of("kubelets that write Leases", n.writing, writingTarget)
	beside.beside = "kube-controller-manager: " + upstream.String()
	return []row{
		of(fmt.Sprintf("nodes that stream (%v, grace %v)", nodeInterval, nodeGrace), n.streaming, streamingTarget), beside,
		of("nodes of a rack that stream, at once", n.rack, streamingTarget),
		of(either(b, "all", "ten")+" nodes of a zone that stream, at once", n.zone, streamingTarget),
	}, nil
}

func (n detection) worst() time.Duration { return quantile(n.times, 1) }

func (n detection) String() string {
	return fmt.Sprintf("%s / %s; %d others marked", formatDuration(quantile(n.times, 0.5)), formatDuration(n.worst()), n.wrong)
}

// noticed has what leasesvc noticed.
type noticed struct{ streaming, writing, rack, zone detection }

// ours measures both kinds of Nodes concurrently with leasesvc, and then streaming ones that die
// together: ten of one zone, and a whole zone.
func (b *bench) ours(ctx context.Context, nodes int, s silencing) (f noticed, err error) {
	rack, zone := silencing{count: 10}, silencing{count: either(b, zoneSize, 10)}
	err = b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		replica, err := b.leasesvc(ctx, cluster, "--loops=*,node-health")
		if err != nil {
			return err
		}
		defer replica.Stop()
		names := holderNames(nodes)
		streams, leave, err := streamers(ctx, replica, names[:nodes/2])
		if err != nil {
			return err
		}
		defer leave()
		writers, err := kubeletsOf(ctx, cluster, names[nodes/2:])
		if err != nil {
			return err
		}
		return observeNodes(ctx, cluster, slices.Concat(streams, writers), func(v *verdicts) error {
			both, bothCtx := errgroup.WithContext(ctx)
			both.Go(func() (err error) { f.streaming.times, err = v.observe(bothCtx, streams, s); return err })
			both.Go(func() (err error) { f.writing.times, err = v.observe(bothCtx, writers, s); return err })
			if err := both.Wait(); err != nil {
				return err
			}
			f.streaming.wrong, f.writing.wrong = v.wronglyMarked(streams, s), v.wronglyMarked(writers, s)
			streams = streams[s.count:]
			if f.rack.times, err = v.observe(ctx, streams, rack); err != nil {
				return err
			}
			f.rack.wrong = v.wronglyMarked(streams, rack)
			f.zone.times, err = v.observe(ctx, streams[len(streams)-zone.count:], zone)
			f.zone.wrong = v.wronglyMarked(streams[:len(streams)-zone.count], rack)
			return err
		})
	})
	b.progress("leasesvc: %+v", f)
	return f, err
}

// upstreams measures kubelets that write Leases with kube-controller-manager's node-lifecycle
// controller, with its defaults except for the rate limit of its requests.
func (b *bench) upstreams(ctx context.Context, nodes int, s silencing) (writing detection, err error) {
	err = b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		manager, err := childprocess.Start(childprocess.Config{
			Path: filepath.Join(b.assets, "kube-controller-manager"), Log: filepath.Join(b.logDir, "kube-controller-manager.log"),
			Args: []string{
				"--kubeconfig=" + cluster.Kubeconfig(), "--controllers=node-lifecycle-controller", "--leader-elect=false",
				"--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=500",
			},
		})
		if err != nil {
			return fmt.Errorf("%w: run `make assets-rivals`", err)
		}
		defer manager.Stop()
		writers, err := kubeletsOf(ctx, cluster, holderNames(nodes))
		if err != nil {
			return err
		}
		return observeNodes(ctx, cluster, writers, func(v *verdicts) (err error) {
			writing.times, err = v.observe(ctx, writers, s)
			writing.wrong = v.wronglyMarked(writers, s)
			return err
		})
	})
	b.progress("kube-controller-manager: %v", writing.times)
	return writing, err
}

// observeNodes creates the Nodes, starts their beats, and calls observe after a while.
func observeNodes(ctx context.Context, cluster *devcluster.Cluster, nodes []*simulatedNode, observe func(*verdicts) error) (err error) {
	kube, err := administrator(cluster.RESTConfig())
	if err != nil {
		return err
	}
	names := make([]string, len(nodes))
	for i, p := range nodes {
		names[i] = p.name
		p.start(ctx)
	}
	defer func() { err = errors.Join(err, stopAll(nodes)) }()
	if err := createNodes(ctx, kube, names); err != nil {
		return err
	}
	v, err := watchVerdicts(ctx, kube)
	if err != nil {
		return err
	}
	defer v.close()
	pause(ctx, warmUp)
	return observe(v)
}

// streamers returns nodes that each beat over their own stream.
func streamers(ctx context.Context, replica *server.Server, names []string) (nodes []*simulatedNode, leave func(), err error) {
	connection, err := dial(replica.GRPC)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		s, err := openStream(ctx, connection, []*leasev1.Holder{{Class: "node", Name: name, BootId: "boot"}})
		if err != nil {
			return nil, nil, errors.Join(err, connection.Close())
		}
		nodes = append(nodes, &simulatedNode{name: name, pace: nodeInterval, beat: func(context.Context) error { return s.beat() }})
	}
	return nodes, func() { _ = connection.Close() }, nil
}

// kubeletsOf returns nodes that write Leases, each over its own connection.
func kubeletsOf(ctx context.Context, cluster *devcluster.Cluster, names []string) ([]*simulatedNode, error) {
	var nodes []*simulatedNode
	for _, name := range names {
		k, err := newKubelet(ctx, cluster, name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, &simulatedNode{name: name, pace: kubeletPace, beat: k.renew})
	}
	return nodes, nil
}
