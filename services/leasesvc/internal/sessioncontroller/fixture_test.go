package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var classes = []sessioncontroller.Class{
	{
		Namespace: "kube-node-lease",
		Session: session.Class{
			Name: "node", Interval: 10 * time.Second, Suspect: 25 * time.Second, TTL: 40 * time.Second, Retention: time.Hour,
		},
		Writes: writeback.Policy{Renew: 10 * time.Second, Duration: 40 * time.Second},
	},
	{
		Namespace: "agents",
		Session: session.Class{
			Name: "agent", Interval: time.Second, Suspect: 3 * time.Second, TTL: 5 * time.Second, Retention: time.Minute,
		},
		Writes: writeback.Policy{Renew: time.Second, Duration: 5 * time.Second},
	},
}

// newRecordingController returns a controller that records its decisions.
func newRecordingController(log *decisions.Log) *sessioncontroller.Controller {
	return sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 10_000, Logger: slog.New(slog.DiscardHandler), Decisions: log})
}

func newController() *sessioncontroller.Controller {
	return sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 10_000, Logger: slog.New(slog.DiscardHandler)})
}

// newAdoptingController returns a controller whose Leases wait for adoption.
func newAdoptingController() *sessioncontroller.Controller {
	return sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 10_000, AdoptLeases: true, Logger: slog.New(slog.DiscardHandler)})
}

// run runs the controller with shard 0, at epoch 7, until stop is called.
func run(t testing.TB, ctl *sessioncontroller.Controller) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if err := ctl.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	endTerm := holdShard(t, ctl, 0, 7)
	return func() {
		endTerm()
		cancel()
		<-ctl.Done()
	}
}

// holdShard holds a shard, with the given silences, until endTerm is called, which waits for the
// end of RunShard.
func holdShard(t testing.TB, ctl *sessioncontroller.Controller, shard int, epoch int64, silences ...session.Silence) (endTerm func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(ctx, shard, epoch), silences...) }()
	for !isHeld(t, ctl, shard) {
		runtime.Gosched()
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run shard %d: %v", shard, err)
		}
	}
}

func isHeld(t testing.TB, ctl *sessioncontroller.Controller, shard int) bool {
	t.Helper()
	_, _, err := ctl.Get(t.Context(), session.Key{}, shard)
	var notHeld sessioncontroller.NotHeldError
	if err != nil && !errors.As(err, &notHeld) && !errors.Is(err, sessioncontroller.ErrNotFilled) {
		t.Fatal(err)
	}
	return !errors.As(err, &notHeld)
}

func node(name, boot string) session.Holder {
	return session.Holder{Key: session.Key{Name: name}, Boot: boot}
}

func agent(name string) session.Holder {
	return session.Holder{Key: session.Key{Class: 1, Name: name}, Boot: "1"}
}

// register registers the holders in one batch.
func register(t testing.TB, ctl *sessioncontroller.Controller, holders ...session.Holder) []sessioncontroller.RegisterResult {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	for _, h := range holders {
		batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{Holder: h, Sequence: 1})
	}
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return batch.Results
}

// registerIn registers one holder of a shard.
func registerIn(t testing.TB, ctl *sessioncontroller.Controller, shard int, h session.Holder) sessioncontroller.RegisterResult {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	batch.Registrations = []sessioncontroller.Registration{{Holder: h, Shard: shard, Sequence: 1}}
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return batch.Results[0]
}

func beat(t testing.TB, ctl *sessioncontroller.Controller, refs ...session.Ref) *sessioncontroller.Batch {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	batch.Refs, batch.Sequence = refs, 2
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return batch
}

func stateOf(t *testing.T, ctl *sessioncontroller.Controller, name string) session.State {
	t.Helper()
	lease, _, err := ctl.Get(t.Context(), node(name, "").Key, 1)
	if err != nil {
		t.Fatal(err)
	}
	return lease.State
}

func getLease(t testing.TB, ctl *sessioncontroller.Controller, h session.Holder) sessioncontroller.Lease {
	t.Helper()
	lease, found, err := ctl.Get(t.Context(), h.Key, 0)
	if err != nil || !found {
		t.Fatalf("get %s: found %t, error %v", h.Key.Name, found, err)
	}
	return lease
}

// listAll lists page by page and returns the resource names in order.
func listAll(t testing.TB, ctl *sessioncontroller.Controller, q sessioncontroller.ListOptions) []string {
	t.Helper()
	var names []string
	for {
		page, err := ctl.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Leases) > q.Limit {
			t.Fatalf("a page of %d for a limit of %d", len(page.Leases), q.Limit)
		}
		for _, lease := range page.Leases {
			q.After = lease.Holder.Key
			names = append(names, classes[q.After.Class].Namespace+"/"+q.After.Name)
		}
		if !page.More {
			return names
		}
	}
}

// silences returns the silences of all shards, ordered by name and rounded to seconds.
func silences(t testing.TB, ctl *sessioncontroller.Controller) map[int][]session.Silence {
	t.Helper()
	silent, err := ctl.Silences(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, silences := range silent {
		slices.SortFunc(silences, func(a, b session.Silence) int { return strings.Compare(a.Holder.Key.Name, b.Holder.Key.Name) })
		for i := range silences {
			silences[i].For = silences[i].For.Round(time.Second)
		}
	}
	return silent
}

func beginAdoption(t *testing.T, ctl *sessioncontroller.Controller) *sessioncontroller.Adoption {
	t.Helper()
	s, err := ctl.BeginAdoption(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// existingLease is a Lease that was renewed some time ago.
func existingLease(holder string, ago time.Duration) writeback.LeaseRecord {
	return writeback.NewLeaseRecord(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: holder, ResourceVersion: "5"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-ago)},
		},
	})
}

func leaseRecord(version string, renewed time.Time) writeback.LeaseRecord {
	return writeback.NewLeaseRecord(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: version},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed}},
	})
}

func startWrites(t testing.TB, ctl *sessioncontroller.Controller) []sessioncontroller.WriteJob {
	t.Helper()
	jobs, err := ctl.StartWrites(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

func finishWrite(t testing.TB, ctl *sessioncontroller.Controller, job sessioncontroller.WriteJob, result sessioncontroller.WriteResult) {
	t.Helper()
	if err := ctl.FinishWrite(job, result); err != nil {
		t.Fatal(err)
	}
}

func beginRelease(t testing.TB, ctl *sessioncontroller.Controller, h session.Holder) *sessioncontroller.Release {
	t.Helper()
	held, err := ctl.BeginRelease(t.Context(), h, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// change is an Event without its times.
type change struct {
	Type  sessioncontroller.EventType
	Name  string
	State session.State
	Write writeback.State
	// Shards are those of a Bookmark, as text.
	Shards    string
	ShardLost bool
}

// watch subscribes and drains the existing sessions.
func watch(t testing.TB, ctl *sessioncontroller.Controller, classes []bool) *sessioncontroller.Subscription {
	t.Helper()
	return watchSelected(t, ctl, sessioncontroller.Selection{Classes: classes})
}

func watchSelected(t testing.TB, ctl *sessioncontroller.Controller, selection sessioncontroller.Selection) *sessioncontroller.Subscription {
	t.Helper()
	sub, err := ctl.Watch(t.Context(), selection, sessioncontroller.Version{})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, sub)
	return sub
}

// drain returns the pending events of a subscription.
func drain(t testing.TB, sub *sessioncontroller.Subscription) []change {
	t.Helper()
	var changes []change
	for {
		events, err := sub.NextWithin(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return changes
		}
		for _, e := range events {
			c := change{
				Type: e.Type, Name: e.Lease.Holder.Key.Name, State: e.Lease.State, Write: e.Lease.Write.State, ShardLost: e.ShardLost,
			}
			if e.Type == sessioncontroller.Bookmark {
				c.Shards = fmt.Sprint(e.Shards.IDs)
			}
			changes = append(changes, c)
		}
	}
}

// position returns the Version after all events that were returned.
func position(t testing.TB, sub *sessioncontroller.Subscription) sessioncontroller.Version {
	t.Helper()
	bookmark, err := sub.Bookmark(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return bookmark.Version
}

// versions drains a watch and returns the Version after each event.
func versions(t *testing.T, sub *sessioncontroller.Subscription) (all []sessioncontroller.Version) {
	t.Helper()
	for {
		events, err := sub.NextWithin(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return all
		}
		for _, e := range events {
			all = append(all, e.Version)
		}
	}
}

// names returns the names of the changed sessions, each with a sign for the type of the event.
func names(changes []change) (all []string) {
	signs := map[sessioncontroller.EventType]string{sessioncontroller.Added: "+", sessioncontroller.Modified: "~", sessioncontroller.Deleted: "-", sessioncontroller.Bookmark: "|"}
	for _, c := range changes {
		all = append(all, signs[c.Type]+c.Name)
	}
	return all
}

func expectNames(t *testing.T, what string, got []change, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, names(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
