package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// stubborn is a service whose body ignores its context until release is closed.
type stubborn struct {
	recorder
	candidate *term.Candidate
	began     chan struct{} // receives each start of the body
	release   chan struct{}
}

func (s *stubborn) Run(ctx context.Context) error {
	return s.candidate.Run(ctx, func(context.Context, *term.Term) error {
		s.began <- struct{}{}
		<-s.release
		return nil
	})
}

func TestLivez_FailsWithTheReasonWhileABodyIgnoresTheEndOfItsTerm(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t)
	cfg := config(cluster.EtcdEndpoints()...)
	cfg.Cluster = "stubborn"
	cfg.Etcd.CAFile, cfg.Etcd.CertFile, cfg.Etcd.KeyFile = cluster.EtcdFiles()
	s := &stubborn{began: make(chan struct{}, 10), release: make(chan struct{})}
	sharded := program(&s.recorder)
	build := sharded.Build
	sharded.Shards = func() int { return 1 }
	sharded.Build = func(deps Deps) (Service, error) {
		s.candidate = deps.Candidate
		_, err := build(deps)
		return s, err
	}
	p, err := New(cfg, sharded, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-s.began:
	case <-time.After(20 * time.Second):
		t.Fatal("the shard is not held")
	}
	if code, body := get(t, p, "/livez"); code != http.StatusOK {
		t.Errorf("livez = %d %s while the body works", code, body)
	}

	etcd, err := etcdconn.Connect(cfg.Etcd, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	gone, err := etcd.Delete(t.Context(), etcdconn.KeyPrefix("stubborn")+"terms/", clientv3.WithPrefix())
	if err != nil || gone.Deleted != 1 {
		t.Fatalf("delete the term's key: %v, %v", gone, err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		code, body := get(t, p, "/livez")
		if code != http.StatusInternalServerError || !strings.Contains(body, "[-]terms failed: the body of shard 0") {
			return fmt.Errorf("livez does not name the body: %s; readiness: %w", body, p.candidate.Check())
		}
		return nil
	})
	close(s.release)
	testkit.Eventually(t, time.Minute, func() error {
		if code, body := get(t, p, "/livez"); code != http.StatusOK {
			return errors.New(body)
		}
		return nil
	})
}
