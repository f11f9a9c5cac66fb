package term_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// electionTimeout bounds what an election asks of etcd, but for the campaign.
const electionTimeout = time.Second

func elections() contest {
	prefix := func(t *testing.T) string { return "/election/" + clusterName(t) }
	return contest{
		enter:   func(t *testing.T, id string, r *relay) contender { return enterElection(t, id, prefix(t), r) },
		leading: prefix, present: prefix,
	}
}

// election is a contender that campaigns once, leads when Campaign says so and resigns in the end. Its session is shared with
// the rest of its process, so it lives on.
type election struct {
	session  *concurrency.Session
	election *concurrency.Election
	leads    atomic.Bool
	failed   atomic.Pointer[error]
	ended    chan struct{}
	stop     context.CancelFunc
	id       string
	client   *clientv3.Client
	prefix   string
}

func enterElection(t *testing.T, id, prefix string, r *relay) *election {
	t.Helper()
	var endpoints []string
	if r != nil {
		endpoints = append(endpoints, r.endpoint())
	}
	client := dial(t, etcd(t), &wire{}, endpoints...)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(20))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &election{
		session: session, election: concurrency.NewElection(session, prefix),
		ended: make(chan struct{}), stop: stop, id: id, client: client, prefix: prefix,
	}
	go e.campaign(ctx)
	t.Cleanup(func() {
		stop()
		<-e.ended
		_ = session.Close() // its lease may be gone, as the scenario has it
	})
	return e
}

func (e *election) campaign(ctx context.Context) {
	defer close(e.ended)
	if err := e.election.Campaign(ctx, e.id); err != nil {
		e.failed.Store(&err)
		return
	}
	e.leads.Store(true)
}

func (e *election) waiting() error {
	ctx, cancel := context.WithTimeout(context.Background(), electionTimeout)
	defer cancel()
	answer, err := e.client.Get(ctx, fmt.Sprintf("%s/%x", e.prefix, e.session.Lease()))
	if err == nil && len(answer.Kvs) == 0 {
		err = errors.New("its key is not there yet")
	}
	return err
}

func (e *election) acts() bool              { return e.leads.Load() }
func (e *election) lease() clientv3.LeaseID { return e.session.Lease() }

func (e *election) troubled() error {
	if err := e.failed.Load(); err == nil || !strings.Contains((*err).Error(), "compacted") {
		return errors.New("the campaign has not met the compaction")
	}
	return nil
}

func (e *election) handOver() error {
	ctx, cancel := context.WithTimeout(context.Background(), electionTimeout)
	defer cancel()
	return e.election.Resign(ctx)
}

// leave does what one does with an election after Campaign has returned, whatever it returned.
func (e *election) leave() {
	<-e.ended
	_ = e.handOver() // the scenario looks at what is left
}
