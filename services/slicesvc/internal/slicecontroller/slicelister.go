package slicecontroller

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// joinTime is how long a list waits for more terms that begin.
const joinTime = 5 * time.Millisecond

// sliceLister reads the state of the cluster for terms that begin: its slices, and the versions
// that the watches must show. Terms that begin at about the same time share a list; each gets a
// list that was requested after its own beginning.
type sliceLister struct {
	reader  Reader
	watches Watches // may be nil
	shards  int

	turn chan struct{} // holds one value while a list runs
	mu   sync.Mutex    // guards next
	// next was requested and has not begun.
	next *sliceList
}

// sliceList is one list of slices, by the shard of the Service that a slice names.
type sliceList struct {
	done            chan struct{} // closed when the other fields are set
	slices          map[int][]metav1.ObjectMeta
	resourceVersion string
	// current has the versions that the watches must show before a term plans.
	current kube.Versions
	err     error
}

func newSliceLister(reader Reader, watches Watches, shards int) *sliceLister {
	return &sliceLister{
		reader:  reader,
		watches: watches,
		shards:  shards,
		turn:    make(chan struct{}, 1),
	}
}

// list returns a list that begins after the call.
func (l *sliceLister) list(ctx context.Context) (*sliceList, error) {
	l.mu.Lock()
	requested := l.next
	first := requested == nil
	if first {
		requested = &sliceList{done: make(chan struct{})}
		l.next = requested
	}
	l.mu.Unlock()
	if first {
		l.fill(ctx, requested)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-requested.done:
		return requested, requested.err
	}
}

// fill waits for its turn and lists. If ctx ends first the list fails for all terms that share it;
// those whose terms go on request another one.
func (l *sliceLister) fill(ctx context.Context, list *sliceList) {
	defer close(list.done)
	select {
	case <-ctx.Done():
		l.begin()
		list.err = ctx.Err()
		return
	case l.turn <- struct{}{}:
	}
	defer func() { <-l.turn }()
	backoff.Sleep(ctx, joinTime)
	l.begin()
	var all []metav1.ObjectMeta
	reads, ctx := errgroup.WithContext(ctx)
	reads.Go(func() (err error) {
		all, list.resourceVersion, err = l.reader.List(ctx)
		return err
	})
	if l.watches != nil {
		reads.Go(func() (err error) {
			list.current, err = l.watches.CurrentVersions(ctx)
			return err
		})
	}
	if list.err = reads.Wait(); list.err != nil {
		return
	}
	list.slices = map[int][]metav1.ObjectMeta{}
	for _, meta := range all {
		number := shard.Of(meta.Namespace, meta.Labels[discoveryv1.LabelServiceName], l.shards)
		list.slices[number] = append(list.slices[number], meta)
	}
}

// begin makes later calls request another list.
func (l *sliceLister) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = nil
}
