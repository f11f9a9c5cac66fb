package robustness

import (
	"context"
	"fmt"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metapb "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

const (
	// readPace and markPace are the times between two lists of each kind, and between two changes
	// of the mark.
	readPace = time.Second
	markPace = 700 * time.Millisecond
	// wholeList is above the number of objects of a world.
	wholeList = 1000
	// orphan is an address whose Service does not exist. It lacks the allocator's label, so that no
	// program frees it.
	orphan = "10.0.250.8"
)

// makeMarked creates the address whose finding is marked.
func (w *world) makeMarked(ctx context.Context) error {
	w.record.Marked = "findings/orphan.ip-addresses." + orphan
	_, err := w.direct.NetworkingV1().IPAddresses().Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: orphan, Labels: map[string]string{networkingv1.LabelIPAddressFamily: "IPv4"}},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: "never"}},
	}, metav1.CreateOptions{})
	return err
}

// findingIsKnown returns an error unless the finding is listed.
func (w *world) findingIsKnown(ctx context.Context) error {
	_, err := bootstrapv1.NewFindingServiceClient(w.gateway).GetFinding(ctx, &bootstrapv1.GetFindingRequest{Name: w.record.Marked})
	return err
}

// mark changes the mark of the finding through the gateway, until ctx ends: a new comment each
// time, and none after each third one.
func (w *world) mark(ctx context.Context) {
	client := bootstrapv1.NewFindingServiceClient(w.gateway)
	for n := 1; ctx.Err() == nil; n++ {
		call := history.Mutation{Sent: w.now()}
		limited, cancel := context.WithTimeout(ctx, answerTimeout)
		var err error
		if n%4 == 0 {
			_, err = client.UnignoreFinding(limited, &bootstrapv1.UnignoreFindingRequest{Name: w.record.Marked})
		} else {
			call.Value = fmt.Sprintf("mark %d", n)
			_, err = client.IgnoreFinding(limited, &bootstrapv1.IgnoreFindingRequest{Name: w.record.Marked, Comment: call.Value})
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		// The client tries again by itself, so that a failure does not say that nothing happened.
		call.Answered, call.Accepted = w.now(), err == nil
		w.mu.Lock()
		w.record.Mutations = append(w.record.Mutations, call)
		w.mu.Unlock()
		testkit.Pause(ctx, markPace)
	}
}

// read lists Nodes, EndpointSlices and findings through the gateway, until ctx ends.
func (w *world) read(ctx context.Context) {
	for ctx.Err() == nil {
		for _, list := range []func(context.Context, *history.Reading) error{w.readNodes, w.readSlices, w.readFindings} {
			reading := history.Reading{Asked: w.now(), Objects: map[string]string{}}
			call, cancel := context.WithTimeout(ctx, answerTimeout)
			err := list(call, &reading)
			cancel()
			if reading.Answered = w.now(); err == nil {
				w.mu.Lock()
				w.record.Readings = append(w.record.Readings, reading)
				w.mu.Unlock()
			}
		}
		testkit.Pause(ctx, readPace)
	}
}

func (w *world) readNodes(ctx context.Context, into *history.Reading) error {
	into.Kind, into.Service = history.NodesRead, history.Leasesvc
	reply, err := nodev1.NewNodeHealthServiceClient(w.gateway).ListNodeHealth(ctx, &nodev1.ListNodeHealthRequest{PageSize: wholeList})
	for _, n := range reply.GetNodes() {
		into.Objects[n.GetName()[len("nodes/"):]] = n.GetResourceVersion()
	}
	return label(into, err, reply.GetNextPageToken(), reply.GetSources(), reply.GetMissing())
}

func (w *world) readSlices(ctx context.Context, into *history.Reading) error {
	into.Kind, into.Service = history.SlicesRead, history.Slicesvc
	reply, err := slicev1.NewSliceServiceClient(w.gateway).ListServiceSlices(ctx, &slicev1.ListServiceSlicesRequest{Parent: "namespaces/" + namespace, PageSize: wholeList})
	for _, s := range reply.GetServiceSlices() {
		for _, slice := range s.GetSlices() {
			into.Objects[namespace+"/"+slice.GetName()] = slice.GetResourceVersion()
		}
	}
	return label(into, err, reply.GetNextPageToken(), reply.GetSources(), reply.GetMissing())
}

func (w *world) readFindings(ctx context.Context, into *history.Reading) error {
	into.Kind, into.Service = history.FindingsRead, history.Bootstrapsvc
	reply, err := bootstrapv1.NewFindingServiceClient(w.gateway).ListFindings(ctx, &bootstrapv1.ListFindingsRequest{PageSize: wholeList})
	for _, f := range reply.GetFindings() {
		into.Objects[f.GetName()] = f.GetIgnore().GetComment()
	}
	return label(into, err, reply.GetNextPageToken(), reply.GetSources(), reply.GetMissing())
}

// label records what an answer says about its age and its completeness.
func label(into *history.Reading, err error, next string, sources []*metapb.Source, lacks []*metapb.MissingPart) error {
	if err != nil {
		return err
	}
	if next != "" {
		return fmt.Errorf("more than %d %s", wholeList, into.Kind)
	}
	for _, source := range sources {
		for _, cache := range source.GetCaches() {
			into.Age = max(into.Age, cache.GetLag().AsDuration())
		}
	}
	for _, part := range lacks {
		for _, shard := range part.GetShards() {
			into.Missing = append(into.Missing, int(shard))
		}
		into.Partial = into.Partial || len(part.GetShards()) == 0
	}
	return nil
}
