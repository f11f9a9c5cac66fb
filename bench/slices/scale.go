package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/podset"
	"github.com/trivet-dev/trivet/bench/internal/sliceview"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	scaleServices, scalePodsEach = 50, 20
	// scaleRate bounds what 1,000 watchers receive to what two cores can send.
	scaleRate = 5
	// deliveryTime bounds the wait for the last event of the watchers.
	deliveryTime = 10 * time.Second
	// settleTime bounds the time until every replica leads shards and every watch is open.
	settleTime = time.Minute
)

// scale is a number of replicas of slicesvc and of watchers of all slices.
type scale struct{ replicas, watchers int }

// measureScale measures flips with several replicas and with many watchers, on one control plane,
// and prints a table.
func measureScale(ctx context.Context, cfg config) (err error) {
	cluster, err := devcluster.Start(ctx, devcluster.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	kube, err := administrator(cluster.RESTConfig())
	if err != nil {
		return err
	}
	set, err := podset.Create(ctx, kube, scaleServices, scalePodsEach)
	if err != nil {
		return err
	}
	view, err := sliceview.Watch(ctx, kube, podset.Namespace, discoveryv1.LabelServiceName)
	if err != nil {
		return err
	}
	defer view.Close()
	if cfg.logDir == "" {
		if cfg.logDir, err = os.MkdirTemp("", "trivet-slices-"); err != nil {
			return err
		}
		defer os.RemoveAll(cfg.logDir)
	}
	flips := pace.Steady{Count: 300, Rate: scaleRate}
	if cfg.short {
		flips.Count = 100
	}
	s := &scaleRun{config: cfg, cluster: cluster, kube: kube, set: set, view: view, flips: flips}
	fmt.Printf("%d Services with %d Pods each, %d flips at %d/s\n\n", scaleServices, scalePodsEach, flips.Count, flips.Rate)
	fmt.Println("| replicas | watchers | latency p50 | p99 | writes of each replica | CPU of each | memory of each | CPU of kube-apiserver | events delivered of all |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, one := range []scale{{1, 0}, {2, 0}, {3, 0}, {1, 1000}, {3, 1000}} {
		if err := s.measure(ctx, one); err != nil {
			return fmt.Errorf("%d replicas, %d watchers: %w", one.replicas, one.watchers, err)
		}
	}
	return nil
}

type scaleRun struct {
	config
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	set     *podset.Set
	view    *sliceview.View
	flips   pace.Steady
}

func (s *scaleRun) measure(ctx context.Context, one scale) error {
	if err := s.set.Restore(ctx); err != nil {
		return err
	}
	var replicas []*server.Server
	defer func() {
		for _, replica := range replicas {
			replica.Stop()
		}
	}()
	for i := range one.replicas {
		replica, err := server.Run(ctx, server.Config{
			ControlPlane: s.cluster, Service: "slicesvc", BinDir: s.binDir, Log: filepath.Join(s.logDir, fmt.Sprintf("scale-%d-%d-%d.log", one.replicas, one.watchers, i)),
		})
		if err != nil {
			return err
		}
		replicas = append(replicas, replica)
	}
	if err := s.view.Exact(ctx, s.set); err != nil {
		return err
	}
	if err := awaitShards(ctx, replicas); err != nil {
		return err
	}
	watching, err := s.watch(ctx, one.watchers)
	if err != nil {
		return err
	}
	defer watching.stop()
	if _, _, err := s.set.Flip(ctx, pace.Steady{Count: warmUp, Rate: scaleRate}, s.view); err != nil {
		return err
	}
	if err := s.view.Exact(ctx, s.set); err != nil {
		return err
	}
	return s.measureFlips(ctx, one, replicas, watching)
}

// usage is what one replica has spent.
type usage struct {
	cpu    time.Duration
	writes int
}

func (s *scaleRun) measureFlips(ctx context.Context, one scale, replicas []*server.Server, watching *watchers) error {
	servers, err := childprocess.Children("kube-apiserver")
	if err != nil {
		return err
	}
	before, err := used(ctx, replicas)
	if err != nil {
		return err
	}
	delivered := watching.events.Load()
	var latencies pace.Latencies
	serverCPU, err := childprocess.Spent(func() (err error) {
		latencies, _, err = s.set.Flip(ctx, s.flips, s.view)
		return errors.Join(err, s.view.Exact(ctx, s.set))
	}, servers...)
	if err != nil {
		return err
	}
	after, err := used(ctx, replicas)
	if err != nil {
		return err
	}
	total := 0
	var writes, cpu, memory []string
	for i, replica := range replicas {
		resident, err := replica.Process().Resident()
		if err != nil {
			return err
		}
		written := after[i].writes - before[i].writes
		total += written
		writes = append(writes, strconv.Itoa(written))
		cpu = append(cpu, fmt.Sprintf("%.2f s", (after[i].cpu-before[i].cpu).Seconds()))
		memory = append(memory, fmt.Sprintf("%d MiB", resident>>20))
	}
	all := int64(total * one.watchers)
	for end := time.Now().Add(deliveryTime); watching.events.Load()-delivered < all && time.Now().Before(end); {
		time.Sleep(lookEvery)
	}
	fmt.Printf("| %d | %d | %.1f ms | %.1f ms | %s | %s | %s | %.1f s | %d of %d |\n", one.replicas, one.watchers,
		latencies.At(0.5).Seconds()*1000, latencies.At(0.99).Seconds()*1000,
		strings.Join(writes, ", "), strings.Join(cpu, ", "), strings.Join(memory, ", "), serverCPU.Seconds(), watching.events.Load()-delivered, all)
	return nil
}

func used(ctx context.Context, replicas []*server.Server) ([]usage, error) {
	all := make([]usage, len(replicas))
	for i, replica := range replicas {
		var err error
		if all[i].cpu, err = replica.Process().CPU(); err != nil {
			return nil, err
		}
		writes, err := sum(ctx, replica, "trivet_slice_changes_total")
		if err != nil {
			return nil, err
		}
		all[i].writes = int(writes)
	}
	return all, nil
}

// awaitShards waits until every replica leads Services.
func awaitShards(ctx context.Context, replicas []*server.Server) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for _, replica := range replicas {
		for {
			slices, err := sum(ctx, replica, "endpoint_slice_controller_num_endpoint_slices")
			if err == nil && slices > 0 {
				break
			}
			select {
			case <-ctx.Done():
				return errors.Join(errors.New("a replica leads no Services"), err)
			case <-time.After(lookEvery):
			}
		}
	}
	return nil
}

// sum adds up the values of a metric of a replica over its labels.
func sum(ctx context.Context, replica *server.Server, metric string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+replica.Admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	total := 0.0
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if family, _, _ := strings.Cut(name, "{"); !ok || family != metric {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		total += number
	}
	return total, nil
}

// watchers count the events of watches of all slices. They decode nothing, because they share the
// cores with the programs under test.
type watchers struct {
	events atomic.Int64
	stop   func()
}

// watch opens count watches, as count nodes do.
func (s *scaleRun) watch(ctx context.Context, count int) (*watchers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watchers{}
	var running sync.WaitGroup
	w.stop = func() {
		cancel()
		running.Wait()
	}
	for range count {
		stream, err := s.kube.DiscoveryV1().RESTClient().Get().Resource("endpointslices").
			Param("watch", "true").Param("resourceVersion", "0").Stream(ctx)
		if err != nil {
			w.stop()
			return nil, err
		}
		running.Go(func() { w.count(stream) })
	}
	return w, nil
}

// count counts the frames of a watch until it ends: a length of four bytes and an event each.
func (w *watchers) count(stream io.ReadCloser) {
	defer stream.Close()
	buffered := bufio.NewReader(stream)
	for {
		length := 0
		for range 4 {
			digit, err := buffered.ReadByte()
			if err != nil {
				return
			}
			length = length<<8 | int(digit)
		}
		if _, err := buffered.Discard(length); err != nil {
			return
		}
		w.events.Add(1)
	}
}
