package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestFailing_NamesOnlyLoopsThatKeepFailing(t *testing.T) {
	unready := errors.New("loop b failed 3 times in a row")
	for name, test := range map[string]struct {
		loops   []loop.Status
		unready error
		want    string
	}{
		"none":                                {},
		"all well":                            {loops: []loop.Status{{Name: "a", State: loop.Running}, {Name: "b", State: loop.Standby}}},
		"an unfinished first pass is ignored": {loops: []loop.Status{{Name: "a", State: loop.Running}}, unready: errors.New("not finished its first pass")},
		"one failure is ignored":              {loops: []loop.Status{{Name: "a", State: loop.Failing, LastError: "conflict"}}},
		"several failures count":              {loops: []loop.Status{{Name: "b", State: loop.Failing, LastError: "no such host"}}, unready: unready, want: "loop b is failing: no such host"},
		"a stalled loop counts":               {loops: []loop.Status{{Name: "c", State: loop.Stalled, LastError: "slow"}}, want: "loop c is stalled: slow"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := failing(test.loops, test.unready); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("failing = %q, want %q", got, test.want)
			}
		})
	}
}

// worker is a service with one shard. Its check "caches" and its loop fail while the test says so.
type worker struct {
	recorder
	candidate *term.Candidate
	unfilled  atomic.Bool
	broken    atomic.Bool
	acting    atomic.Bool
}

func (w *worker) Run(ctx context.Context) error {
	return w.candidate.Run(ctx, func(ctx context.Context, _ *term.Term) error {
		w.acting.Store(true)
		defer w.acting.Store(false)
		return w.loops.RunTerm(ctx)
	})
}

func (w *worker) program() Program {
	return Program{
		Name: "testsvc", Loops: []string{"duty"}, Shards: func() int { return 1 },
		Build: func(deps Deps) (_ Service, err error) {
			w.candidate = deps.Candidate
			deps.Ready.Add("caches", func() error { return complain(&w.unfilled, "being filled") })
			duty := func(context.Context) error { return complain(&w.broken, "no such host") }
			w.loops, err = loop.NewRunner(loop.Config{Loops: []loop.Loop{
				{Name: "duty", Scope: loop.Leader, Run: loop.Every(100*time.Millisecond, duty)},
			}})
			return w, err
		},
	}
}

func complain(wrong *atomic.Bool, complaint string) error {
	if wrong.Load() {
		return errors.New(complaint)
	}
	return nil
}

// begin runs a worker until the test ends.
func (w *worker) begin(t *testing.T) {
	t.Helper()
	cluster := testkit.Cluster(t)
	cfg := config(cluster.EtcdEndpoints()...)
	cfg.Cluster = strings.ToLower(strings.ReplaceAll(t.Name(), "_", "-"))
	cfg.Etcd.CAFile, cfg.Etcd.CertFile, cfg.Etcd.KeyFile = cluster.EtcdFiles()
	p, err := New(cfg, w.program(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// acts returns nil while the worker holds the term.
func (w *worker) acts() error {
	if !w.acting.Load() {
		return fmt.Errorf("does not act: %+v", w.candidate.Status())
	}
	return nil
}

func TestRun_TermMovesToReplicaWithCaches(t *testing.T) {
	t.Parallel()
	empty, full := &worker{}, &worker{}
	empty.unfilled.Store(true)
	empty.begin(t)
	testkit.Eventually(t, 20*time.Second, empty.acts) // there is no other replica
	full.begin(t)
	testkit.Eventually(t, 20*time.Second, full.acts)
	if reason := empty.candidate.Status().Session.LastError; !strings.Contains(reason, "caches: being filled") {
		t.Errorf("status says %q, want why the term is not held here", reason)
	}
}

// After the release, the loops stand by and no longer fail. The term must not return for that
// reason.
func TestRun_LoopsThatKeepFailingReleaseTheTerm(t *testing.T) {
	t.Parallel()
	first, second := &worker{}, &worker{}
	first.begin(t)
	second.begin(t)
	testkit.Eventually(t, 20*time.Second, func() error {
		if unready := first.candidate.Status().Unready; len(unready) > 0 {
			return fmt.Errorf("unready are %v", unready)
		}
		return first.candidate.Check()
	})
	var holder, other *worker
	testkit.Eventually(t, 20*time.Second, func() error {
		if holder, other = first, second; second.acting.Load() {
			holder, other = second, first
		}
		return errors.Join(holder.acts(), other.candidate.Check())
	})
	began := time.Now()
	holder.broken.Store(true)
	testkit.Eventually(t, 20*time.Second, other.acts)
	if took := time.Since(began); took < 9*time.Second || took > 15*time.Second {
		t.Errorf("the term went to the other after %v, want about ten seconds", took)
	}
	<-time.After(12 * time.Second) // it would be ready again by now, had it not given the term away
	if err := other.acts(); err != nil {
		t.Error(err)
	}
	if reason := holder.candidate.Status().Session.LastError; !strings.Contains(reason, "gave shards away") {
		t.Errorf("status says %q, want why the term is not held here", reason)
	}
}

func TestLeaderSeen_WaitsForTheFirstHolderOnly(t *testing.T) {
	var holdings []term.ShardStatus
	l := &leaderSeen{holdings: func() []term.ShardStatus { return holdings }}
	if l.check() == nil {
		t.Error("led before anything is known of a shard")
	}
	holdings = []term.ShardStatus{{Shard: 0}, {Shard: 1}}
	if l.check() == nil {
		t.Error("led while no shard has a holder")
	}
	holdings[1].ReplicaID = "b"
	if err := l.check(); err != nil {
		t.Errorf("not led with a holder: %v", err)
	}
	holdings[1].ReplicaID = ""
	if err := l.check(); err != nil {
		t.Errorf("not led while a shard moves: %v", err)
	}
}
