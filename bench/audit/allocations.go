package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	// auditTarget and memoryTarget are the allowed cost of the process until the first audit of a
	// large cluster, including the reads. changeTarget is that of one changed Service.
	auditTarget  = time.Second
	memoryTarget = 150 << 20
	changeTarget = time.Millisecond
	// recreateTarget is the time until a deleted IPAddress in use exists again.
	recreateTarget = time.Second
	// changePace is the interval between two Services that are created and deleted.
	changePace = 20 * time.Millisecond
	// startTimeout bounds the start of a program that reads a large cluster.
	startTimeout = time.Minute
)

func measureAllocations(ctx context.Context, b *bench) (rows []row, err error) {
	services := either(b, 20_000, 5_000)
	b.progress("%d Services…", services)
	w, err := newWorld(ctx, services)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	a := &auditing{bench: b, world: w}
	for _, measure := range []func(context.Context) ([]row, error){a.upstreamRecreates, a.starts, a.works} {
		if err := a.waitUntilIdle(ctx); err != nil {
			return rows, err
		}
		measured, err := measure(ctx)
		rows = append(rows, measured...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// auditing is a large cluster whose allocations are audited.
type auditing struct {
	*bench
	*world
	upstream []time.Duration // times until kube-apiserver itself had repaired a deletion
}

// waitUntilIdle waits until kube-apiserver has processed all writes, and returns an error if an
// IPAddress was lost.
func (a *auditing) waitUntilIdle(ctx context.Context) error {
	pids, err := childprocess.Children("kube-apiserver")
	if err != nil {
		return err
	}
	for range 60 {
		spent, err := childprocess.Spent(func() error { pause(ctx, time.Second); return ctx.Err() }, pids...)
		if err != nil {
			return err
		}
		if spent < 300*time.Millisecond {
			return a.checkAddresses(ctx)
		}
	}
	return errors.New("kube-apiserver does not come to rest")
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// upstreamRecreates deletes IPAddresses in use while only kube-apiserver's own repairer runs.
func (a *auditing) upstreamRecreates(ctx context.Context) (_ []row, err error) {
	if a.short {
		return nil, nil
	}
	a.progress("kube-apiserver's own repair of IPAddresses: up to three minutes…")
	a.upstream, err = a.recreated(ctx, 6, 15*time.Second, 5*time.Minute)
	return nil, err
}

// starts measures the floor and bootstrapsvc from their start until they are synced.
func (a *auditing) starts(ctx context.Context) ([]row, error) {
	a.progress("starts…")
	floorCPU, floorMemory, err := a.startFloor(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	server, _, err := a.startAudit(ctx)
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	wall := time.Since(began)
	cpu, err1 := server.Process().CPU()
	resident, err2 := server.Process().Resident()
	what := fmt.Sprintf("%d Services and IPAddresses, all ports: ", a.services)
	return []row{
		{what: what + "from the start of the process until all is compared", ours: wall.Seconds(), show: formatSeconds},
		row{what: what + "CPU of the whole process until then", ours: cpu.Seconds(), show: formatSeconds, most: auditTarget.Seconds()}.than("the floor", floorCPU.Seconds()),
		row{what: what + "resident memory then", ours: float64(resident), show: mebibytes, most: memoryTarget}.than("the floor", float64(floorMemory)),
	}, errors.Join(err1, err2)
}

func (a *auditing) startFloor(ctx context.Context) (cpu time.Duration, resident int64, err error) {
	log := filepath.Join(a.logDir, "floor.log")
	process, err := childprocess.Start(childprocess.Config{Env: []string{floorVariable + "=" + a.cluster.Kubeconfig()}, Log: log})
	if err != nil {
		return 0, 0, err
	}
	defer process.Stop()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		said, err := os.ReadFile(log)
		if err != nil || ctx.Err() != nil {
			return 0, 0, errors.Join(err, ctx.Err())
		}
		if bytes.Contains(said, []byte(floorSynced)) {
			break
		}
		pause(ctx, 10*time.Millisecond)
	}
	cpu, err1 := process.CPU()
	resident, err2 := process.Resident()
	return cpu, resident, errors.Join(err1, err2)
}

// startAudit starts a bootstrapsvc and returns after its first audit: a replica is ready before it
// leads.
func (a *auditing) startAudit(ctx context.Context) (*server.Server, bootstrapv1.FindingServiceClient, error) {
	server, err := server.Run(ctx, server.Config{
		ControlPlane: a.cluster, Service: "bootstrapsvc", BinDir: a.binDir, Log: filepath.Join(a.logDir, "allocations.log"),
		Args: []string{"--loops=*,-apiserver-probe,-kubernetes-endpoints", "--apiserver-port=6443"},
	})
	if err != nil {
		return nil, nil, err
	}
	connection, err := grpc.NewClient(server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		server.Kill()
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { _ = connection.Close() })
	client := bootstrapv1.NewFindingServiceClient(connection)
	deadline := time.Now().Add(startTimeout)
	for {
		_, err := client.ListFindings(ctx, &bootstrapv1.ListFindingsRequest{})
		if err == nil {
			return server, client, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			server.Kill()
			return nil, nil, err
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// works measures the cost of a running bootstrapsvc.
func (a *auditing) works(ctx context.Context) ([]row, error) {
	running, client, err := a.startAudit(ctx)
	if err != nil {
		return nil, err
	}
	defer running.Stop()
	var rows []row
	for _, measure := range []func(context.Context, *server.Server, bootstrapv1.FindingServiceClient) ([]row, error){
		a.audits, a.changes, a.recreates,
	} {
		measured, err := measure(ctx, running, client)
		rows = append(rows, measured...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// audits measures requested audits.
func (a *auditing) audits(ctx context.Context, server *server.Server, client bootstrapv1.FindingServiceClient) ([]row, error) {
	const count = 5
	a.progress("%d audits…", count)
	var spent []time.Duration
	for range count {
		pause(ctx, time.Second)
		cpu, err := server.Process().Spent(func() error {
			answer, err := client.AuditAllocations(ctx, &bootstrapv1.AuditAllocationsRequest{})
			if err != nil {
				return err
			}
			return a.plausible(answer)
		})
		if err != nil {
			return nil, err
		}
		spent = append(spent, cpu)
	}
	return []row{worstOf("the same: CPU of a requested audit, which compares what changed since", spent, 0)}, nil
}

// plausible returns an error unless the audit covered the whole cluster and the cluster is healthy.
func (a *auditing) plausible(answer *bootstrapv1.AuditAllocationsResponse) error {
	for _, store := range answer.GetStores() {
		if store.GetPresent() && store.GetServiceCount() < int64(a.services) || store.GetError() != "" {
			return fmt.Errorf("the audit compared too little: %v", answer)
		}
	}
	// The exhausted port range is one finding. There must be no other.
	if len(answer.GetStores()) == 0 || answer.GetFindingCount() > 1 {
		return fmt.Errorf("the audit of a cluster that is well says %v", answer)
	}
	return nil
}

// changes measures created and deleted Services against the same time without changes.
func (a *auditing) changes(ctx context.Context, server *server.Server, _ bootstrapv1.FindingServiceClient) ([]row, error) {
	count := either(a.bench, 500, 100)
	a.progress("%d Services are created and deleted…", count)
	var during time.Duration
	busy, err := server.Process().Spent(func() error {
		began := time.Now()
		for i := range count {
			if err := a.createAndDelete(ctx, i); err != nil {
				return err
			}
			pause(ctx, time.Until(began.Add(time.Duration(i+1)*changePace)))
		}
		during = time.Since(began)
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	idle, err := server.Process().Spent(func() error { pause(ctx, during); return ctx.Err() })
	if err != nil {
		return nil, err
	}
	each := (busy - idle).Seconds() / float64(2*count)
	return []row{
		{what: fmt.Sprintf("the same: CPU for each Service that changed, of %d created and deleted", count), ours: each, show: formatSeconds, most: changeTarget.Seconds()},
		{what: "the same: CPU at rest, per second", ours: idle.Seconds() / during.Seconds(), show: formatSeconds},
	}, nil
}

func (a *auditing) createAndDelete(ctx context.Context, i int) error {
	services := a.kube.CoreV1().Services("default")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("passing-%d", i)}}
	service.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	if _, err := services.Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	return services.Delete(ctx, service.Name, metav1.DeleteOptions{})
}

func (a *auditing) recreates(ctx context.Context, _ *server.Server, _ bootstrapv1.FindingServiceClient) ([]row, error) {
	count := either(a.bench, 30, 8)
	a.progress("%d IPAddresses in use are deleted…", count)
	ours, err := a.recreated(ctx, count, 500*time.Millisecond, startTimeout)
	if err != nil {
		return nil, err
	}
	r := worstOf("an IPAddress in use is deleted: until it exists again", ours, recreateTarget)
	r.whose = "kube-apiserver: not waited for with -short"
	if len(a.upstream) > 0 {
		r = r.than(fmt.Sprintf("kube-apiserver (worst of %d, median %s)", len(a.upstream), sorted(a.upstream).median()), sorted(a.upstream).worst())
	}
	return []row{r}, nil
}

// recreated deletes IPAddresses in use at intervals, and returns the times until each exists again.
func (a *auditing) recreated(ctx context.Context, count int, apart, retryTimeout time.Duration) ([]time.Duration, error) {
	addresses := a.kube.NetworkingV1().IPAddresses()
	deleted := map[string]time.Time{}
	back := map[string]time.Duration{}
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	now, err := addresses.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	following, err := addresses.Watch(ctx, metav1.ListOptions{ResourceVersion: now.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer following.Stop()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for len(back) < count {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d deleted IPAddresses are there again: %w", len(back), count, ctx.Err())
		case <-tick.C:
			if len(deleted) == count {
				continue
			}
			name := address(rand.IntN(a.services))
			deleted[name] = time.Now()
			if err := addresses.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return nil, err
			}
			tick.Reset(apart)
		case event, ok := <-following.ResultChan():
			if !ok {
				return nil, errors.New("the watch of IPAddresses ended")
			}
			made, isAddress := event.Object.(*networkingv1.IPAddress)
			if !isAddress || event.Type != watch.Added {
				continue
			}
			if at, was := deleted[made.Name]; was {
				back[made.Name] = time.Since(at)
			}
		}
	}
	return slices.Collect(maps.Values(back)), nil
}
