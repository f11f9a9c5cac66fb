package terms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

const (
	// ttl is the shortest that etcd grants.
	ttl = 2 * time.Second
	// workWithin is far beyond what it takes until all shards are worked on, even on a starved machine.
	workWithin = 30 * time.Second
	// stopWithin is the stop timeout of a replica and what it needs beside.
	stopWithin = 15 * time.Second
	// pulse is how often it is looked whether the machine stands still, and stall from when on it does.
	pulse = 10 * time.Millisecond
	stall = 150 * time.Millisecond
	// requestTimeout bounds what a test itself asks of etcd.
	requestTimeout = 10 * time.Second
)

// scene is an etcd, replicas behind relays, and a witness.
type scene struct {
	testing.TB
	dir     string
	shards  int
	etcd    []*etcdMember
	client  *clientv3.Client
	witness *witness
	testify sync.WaitGroup
	hush    context.CancelFunc

	// onEtcd lets only one fault at a time be about etcd: on a slow machine its start may outlast the schedule's pauses.
	onEtcd sync.Mutex

	mu     sync.Mutex // guards what follows
	places []*place
	ids    []string // of all replicas there ever were
	faults []history.Fault
}

// place is where a replica runs; another takes it when it was killed.
type place struct {
	relay    *relay
	settings replica
	process  *process
}

// newScene starts etcd and its witness.
func newScene(t testing.TB, members, shards int) *scene {
	t.Helper()
	s := &scene{TB: t, dir: workDir(t), shards: shards, witness: &witness{held: map[int]int{}}}
	s.etcd = startEtcd(t, s.dir, members)
	s.client = mustConnect(t, s.endpoints()...)
	ctx, hush := context.WithCancel(context.Background())
	s.hush = hush
	s.testify.Go(func() { s.witness.follow(ctx, s.client) })
	s.testify.Go(func() { s.feelPulse(ctx) })
	t.Cleanup(func() {
		for _, p := range s.places {
			p.process.kill()
		}
		hush()
		s.testify.Wait()
	})
	return s
}

// workDir is removed after the test unless -faults.keep says where histories are kept.
func workDir(t testing.TB) string {
	t.Helper()
	if *keep == "" {
		return t.TempDir()
	}
	dir := filepath.Join(*keep, filepath.Base(t.Name()))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (s *scene) endpoints() []string {
	var endpoints []string
	for _, m := range s.etcd {
		endpoints = append(endpoints, m.endpoint())
	}
	return endpoints
}

// open starts n replicas, each behind a relay to the only etcd, or with access to all where there are several.
func (s *scene) open(n int, change func(*replica)) {
	s.Helper()
	for i := range n {
		p := &place{settings: replica{Endpoints: s.endpoints(), Shards: s.shards, TTL: ttl}}
		if len(s.etcd) == 1 {
			p.relay = newRelay(s.TB, s.etcd[0].client)
			p.settings.Endpoints = []string{p.relay.endpoint()}
		}
		if change != nil {
			change(&p.settings)
		}
		s.places = append(s.places, p)
		if err := s.occupy(i); err != nil {
			s.Fatal(err)
		}
	}
}

// occupy starts a new replica in a place.
func (s *scene) occupy(at int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.places[at]
	p.settings.ID = fmt.Sprintf("r%d-%d", at, len(s.ids))
	p.settings.Log = s.logFile(p.settings.ID)
	settings, err := json.Marshal(p.settings)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	output, err := os.Create(p.settings.Log + ".stderr")
	if err != nil {
		return err
	}
	defer output.Close() // the child has a descriptor of its own
	command := exec.Command(self)
	command.Env = append(os.Environ(), replicaVariable+"="+string(settings))
	command.Stderr = output
	s.ids = append(s.ids, p.settings.ID)
	p.process, err = launch(command)
	return err
}

func (s *scene) logFile(id string) string { return filepath.Join(s.dir, id+".log") }

// allAtWork waits until every shard is written to from now on. That it is claimed would mean little: the key of a holder that
// has gone may still be there.
func (s *scene) allAtWork() error {
	from := s.witness.seen()
	return s.eventually(workWithin, func() error {
		versions, _, err := s.witness.testimony()
		written := map[int]bool{}
		for _, v := range slices.Backward(versions) {
			if v.Revision <= from {
				break
			}
			written[v.Shard] = true
		}
		if len(written) < s.shards {
			return errors.Join(err, fmt.Errorf("%d of %d shards are worked on", len(written), s.shards))
		}
		return err
	})
}

func (s *scene) eventually(within time.Duration, condition func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for {
		err := condition()
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// struck notes a fault that has just ended.
func (s *scene) struck(kind history.FaultKind, replica string, from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, history.Fault{Kind: kind, Replica: replica, From: from, To: clock()})
}

// feelPulse notes each time that this process, and so in all likelihood every other, did not run for a while: what happens
// late then is not the replicas' doing.
func (s *scene) feelPulse(ctx context.Context) {
	for last := clock(); ctx.Err() == nil; last = clock() {
		pause(ctx, pulse)
		if clock()-last > int64(stall) {
			s.struck(history.Stall, "", last)
		}
	}
}

// close ends the history, stops the replicas and returns what happened.
func (s *scene) close() (history.History, error) {
	h := history.History{Shards: s.shards, TTL: ttl, End: clock()}
	problems := []error{s.stopAll(), s.hearOut()}
	var err error
	if h.Versions, h.Claims, err = s.witness.testimony(); err != nil {
		problems = append(problems, fmt.Errorf("the witness: %w", err))
	}
	h.Faults = s.faults
	for _, id := range s.ids {
		log, err := s.read(id)
		h.Logs, problems = append(h.Logs, log), append(problems, err)
	}
	return h, errors.Join(problems...)
}

// stopAll stops all replicas, together.
func (s *scene) stopAll() error {
	stops := make([]error, len(s.places))
	var stopping sync.WaitGroup
	for i, p := range s.places {
		stopping.Go(func() { stops[i] = p.process.stop(stopWithin) })
	}
	stopping.Wait()
	return errors.Join(stops...)
}

// hearOut waits until the witness has seen everything and ends its watch.
func (s *scene) hearOut() error {
	last, err := s.noise()
	if err != nil {
		return err
	}
	err = s.eventually(requestTimeout, func() error {
		if seen := s.witness.seen(); seen < last {
			return fmt.Errorf("the witness has seen revision %d of %d", seen, last)
		}
		return nil
	})
	s.hush()
	s.testify.Wait()
	return err
}

// noise writes a key that means nothing and returns the revision.
func (s *scene) noise() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	answer, err := s.client.Put(ctx, term.Prefix(cluster)+"checkpoints/noise", "")
	if err != nil {
		return 0, fmt.Errorf("write noise: %w", err)
	}
	return answer.Header.Revision, nil
}

func (s *scene) read(id string) (history.Log, error) {
	file, err := os.Open(s.logFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return history.Log{Replica: id}, nil // killed before it began
	}
	if err != nil {
		return history.Log{}, err
	}
	defer file.Close()
	return history.ReadLog(id, file)
}

var errNothingYet = errors.New("nothing yet")

// worker waits until the replica that has claimed a shard has written there, and returns its place.
func (s *scene) worker(t testing.TB, shard int) *place {
	t.Helper()
	var found *place
	err := s.eventually(workWithin, func() error {
		id := s.witness.holders()[shard]
		for _, p := range s.places {
			if p.settings.ID == id {
				found = p
			}
		}
		return s.lastWrite(shard, id, true)
	})
	if err != nil {
		t.Fatalf("nobody does the work of shard %d: %v", shard, err)
	}
	return found
}

// lastWrite is an error until the last effective write to a shard is, or is not, by the given replica.
func (s *scene) lastWrite(shard int, by string, want bool) error {
	versions, _, err := s.witness.testimony()
	for _, v := range slices.Backward(versions) {
		if v.Shard != shard {
			continue
		}
		if strings.HasPrefix(v.Register.ID, by+"/") == want {
			return err
		}
		break
	}
	return errors.Join(err, errNothingYet)
}
