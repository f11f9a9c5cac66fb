package resources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	trivetv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

const (
	// maxSliceReaderMemory bounds the memory for one watch of slices that is not read: the windows
	// of its connection, buffers and goroutines, and no events.
	maxSliceReaderMemory = 384 << 10
	// maxWriteRatio bounds how much longer the writes of slices take beside such watches. Times
	// below leastWrite are near the period at which the test looks.
	maxWriteRatio = 1.5
	leastWrite    = 50 * time.Millisecond
	// rememberedDeletions is more than the deletions of Services that slicesvc remembers.
	rememberedDeletions = 10_100
	// streamWindow is what a server may send that the client has not read: the least of gRPC.
	streamWindow = 64 << 10
	// writersAtOnce is how many requests the test has in progress at kube-apiserver.
	writersAtOnce = 16
)

// sliceFixture is one slicesvc with Services that change and a watch that is read.
type sliceFixture struct {
	*world
	server   *replica
	services int
	probe    *probe

	mu     sync.Mutex // guards events and ready
	events int
	ready  bool // whether the watch has told of the probe as ready
}

func newSliceFixture(t *testing.T, services int) *sliceFixture {
	t.Helper()
	f := &sliceFixture{world: newWorld(t, true), services: services}
	f.simulated(1, 1, 1)
	f.forEach(services, func(ctx context.Context, n int) error { return f.create(ctx, padded(n)) })
	f.server = f.newServer(slicing, 0)
	f.server.start()
	f.server.awaitReady()
	f.probe = f.newProbe("probe", "10.250.0.1")
	f.await(startTimeout, f.probe.change)
	f.await(startTimeout, f.probe.applied)
	stream := f.open(t.Context())
	go f.follow(stream)
	return f
}

// padded is a long name, so that few events fill the windows of a connection.
func padded(number int) string { return fmt.Sprintf("s%05d%s", number, strings.Repeat("x", 57)) }

// create creates a Service without a selector, which has no slices.
func (f *sliceFixture) create(ctx context.Context, name string) error {
	_, err := f.kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	return err
}

// forEach calls do for each number, some at a time.
func (f *sliceFixture) forEach(number int, do func(ctx context.Context, n int) error) {
	f.Helper()
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(writersAtOnce)
	for n := range number {
		group.Go(func() error { return do(ctx, n) })
	}
	if err := group.Wait(); err != nil {
		f.Error(err)
	}
}

type sliceStream = grpc.ServerStreamingClient[slicev1.WatchServiceSlicesResponse]

// open opens a watch over a connection of its own, whose windows do not grow.
func (f *sliceFixture) open(ctx context.Context) sliceStream {
	f.Helper()
	stream, err := slicev1.NewSliceServiceClient(f.dial(f.server.GRPC, grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(streamWindow))).WatchServiceSlices(ctx, &slicev1.WatchServiceSlicesRequest{Parent: "namespaces/" + namespace})
	if err != nil {
		f.Fatal(err)
	}
	return stream
}

// follow reads a watch and notes the readiness of the probe.
func (f *sliceFixture) follow(stream sliceStream) {
	for {
		event, err := stream.Recv()
		if err != nil {
			return
		}
		f.mu.Lock()
		if event.GetType() != trivetv1.EventType_EVENT_TYPE_BOOKMARK {
			f.events++
		}
		if service := event.GetServiceSlices(); serviceOf(service) == "probe" {
			f.ready = service.GetReadyEndpointCount() > 0
		}
		f.mu.Unlock()
	}
}

func serviceOf(of *slicev1.ServiceSlices) string {
	_, name, _ := strings.Cut(of.GetName(), "/serviceslices/")
	return name
}

// change changes the probe some times while all Services change for some rounds, and returns how
// long each change took to reach a slice, and how long to reach the watch.
func (f *sliceFixture) change(phase string, changes, rounds int) (written, told []time.Duration) {
	f.Helper()
	var changing sync.WaitGroup
	defer changing.Wait()
	changing.Go(func() {
		f.forEach(f.services*rounds, func(ctx context.Context, n int) error {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"resources":"%s-%d"}}}`, phase, n)
			_, err := f.kube.CoreV1().Services(namespace).Patch(ctx, padded(n%f.services), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
	})
	for range changes {
		if err := f.probe.change(context.Background()); err != nil {
			f.Fatal(err)
		}
		begin := time.Now()
		f.await(time.Minute, f.probe.applied)
		written = append(written, time.Since(begin))
		f.await(time.Minute, func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.ready != f.probe.ready {
				return errors.New("the watch that is read has not told of the probe")
			}
			return nil
		})
		told = append(told, time.Since(begin))
	}
	return written, told
}

// sliceReading is what a watch that was not read for long gets once it is read.
type sliceReading struct {
	events int
	// last says that the watch has told of the newest Service.
	last bool
	// ended is the error of the watch.
	ended error
}

func readOn(stream sliceStream, last string) (r sliceReading) {
	for !r.last && r.ended == nil {
		event, err := stream.Recv()
		r.ended = err
		r.last = serviceOf(event.GetServiceSlices()) == last
		r.events++
	}
	return r
}

// A watch of slices that is not read takes a bounded memory, delays no write and no other watch,
// and nothing queues up for it. It gets the newest states later, or OUT_OF_RANGE after more
// deletions than slicesvc remembers.
func TestSlowReaders_Slices(t *testing.T) {
	readers, services, changes, rounds := 10, 300, 5, 4
	if *long {
		readers, services, changes, rounds = 100, 2000, 50, 6
	}
	f := newSliceFixture(t, services)
	tb := newTable(t, fmt.Sprintf("%d watches of slices that read nothing, beside %d Services that change %d times", readers, services, rounds))
	alone, toldAlone := f.change("alone", changes, rounds)
	before := f.server.usage()
	if err := f.server.Process().ResetPeak(); err != nil {
		t.Fatal(err)
	}
	const started = `grpc_server_started_total{grpc_method="WatchServiceSlices",grpc_service="trivet.slice.v1.SliceService",grpc_type="server_stream"}`
	var silent []sliceStream
	watching, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range readers {
		silent = append(silent, f.open(watching))
	}
	f.await(startTimeout, func(ctx context.Context) error {
		text, err := f.server.get(ctx, "/metrics")
		if open := int(valueOf(text, started)); err == nil && open < readers+1 {
			err = fmt.Errorf("slicesvc has %d watches, want %d", open, readers+1)
		}
		return err
	})
	f.mu.Lock()
	eventsBefore := f.events
	f.mu.Unlock()
	beside, toldBeside := f.change("beside", changes, rounds)
	if *long {
		f.forEach(rememberedDeletions, func(ctx context.Context, n int) error {
			name := fmt.Sprintf("deleted-%d", n)
			return errors.Join(f.create(ctx, name), f.kube.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
		})
	}
	const last = "last"
	f.await(startTimeout, func(ctx context.Context) error { return f.create(ctx, last) })
	after := f.server.usage()

	tb.add("resident memory of slicesvc before, largest and after", "%s, %s, %s", mebibytes(before.Resident), mebibytes(after.Peak), mebibytes(after.Resident))
	atMost(tb, "memory kept for the watches", after.heap+after.other-before.heap-before.other, int64(readers*maxSliceReaderMemory)+f.deletionMemory(), mebibytes)
	tb.add("time until a slice is written without them, p50 and p99", "%s, %s", duration(percentile(alone, 0.5)), duration(percentile(alone, 0.99)))
	tb.add("time until a slice is written beside them, p50 and p99", "%s, %s", duration(percentile(beside, 0.5)), duration(percentile(beside, 0.99)))
	atMost(tb, "the second p50 as a multiple of the first one, which counts as "+leastWrite.String()+" at least", float64(percentile(beside, 0.5))/float64(max(percentile(alone, 0.5), leastWrite)), boundedRatio(maxWriteRatio),
		func(ratio float64) string { return fmt.Sprintf("%.2f", ratio) })
	tb.add("time until a watch that is read tells of it, without them, p50", "%s", duration(percentile(toldAlone, 0.5)))
	atMost(tb, "the same beside them, p50", percentile(toldBeside, 0.5), bounded(percentile(toldAlone, 0.5)+maxSlowdown), duration)
	f.mu.Lock()
	tb.add("events of the watch that is read meanwhile", "%d", f.events-eventsBefore)
	f.mu.Unlock()
	defer time.AfterFunc(startTimeout, cancel).Stop() // a watch that does not tell of the last Service has no end
	f.readAll(tb, silent, last)
}

// deletionMemory bounds what slicesvc keeps about Services that are deleted.
func (f *sliceFixture) deletionMemory() int64 {
	if *long {
		return rememberedDeletions << 10
	}
	return 0
}

// readAll reads the silent watches. They have to skip states, and to end as the API documents.
func (f *sliceFixture) readAll(tb *table, silent []sliceStream, last string) {
	f.Helper()
	var mu sync.Mutex // guards current, most and ended
	current, most, ended := 0, 0, map[string]int{}
	var reading sync.WaitGroup
	for _, stream := range silent {
		reading.Go(func() {
			r := readOn(stream, last)
			mu.Lock()
			defer mu.Unlock()
			most = max(most, r.events)
			if r.last {
				current++
				return
			}
			ended[fmt.Sprintf("%v %v", status.Code(r.ended), rpcerror.ReasonOf(r.ended))]++
		})
	}
	reading.Wait()
	tb.add("silent watches that have the newest state once they are read, and those that end", "%d, %v", current, ended)
	// All that exists, what the windows of a connection hold, and the newest state of all Services.
	atMost(tb, "most events of one of them", most, 4*f.services, count)
	expired := fmt.Sprintf("%v %s", codes.OutOfRange, "RESUME_TOKEN_EXPIRED")
	if *long && ended[expired] < len(silent) {
		f.Errorf("%d of %d silent watches end with %s, want all: %v", ended[expired], len(silent), expired, ended)
	}
	if !*long && current < len(silent) {
		f.Errorf("%d of %d silent watches have the newest state, want all: %v", current, len(silent), ended)
	}
}
