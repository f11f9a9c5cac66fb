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
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/faults/internal/child"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

const (
	// ttl is the shortest that etcd grants.
	ttl = 2 * time.Second
	// workWithin is far beyond what it takes until all shards are worked on, even on a starved machine.
	writeTimeout = 30 * time.Second
	// stopWithin is the stop timeout of a replica and what it needs beside.
	stopTimeout = 15 * time.Second
	// pulse is how often it is looked whether the machine stands still, and stall from when on it does.
	stallCheckInterval = 10 * time.Millisecond
	stallThreshold     = 150 * time.Millisecond
	// requestTimeout bounds what a test itself asks of etcd.
	requestTimeout = 10 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(runReplica())
	}
	goleak.VerifyTestMain(m)
}

// scene is an etcd, replicas behind relays, and a witness.
type fixture struct {
	testing.TB
	dir           string
	shards        int
	etcd          []*etcdMember
	client        *clientv3.Client
	recorder      *recorder
	background    sync.WaitGroup
	stopRecording context.CancelFunc

	// onEtcd lets only one fault at a time be about etcd: on a slow machine its start may outlast the schedule's pauses.
	etcdFaults sync.Mutex

	mu     sync.Mutex // guards what follows
	slots  []*slot
	ids    []string // of all replicas there ever were
	faults []history.Fault
}

// place is where a replica runs; another takes it when it was killed.
type slot struct {
	relay    *relay
	settings replica
	process  *child.Process
}

// newScene starts etcd and its witness.
func newFixture(t testing.TB, members, shards int) *fixture {
	t.Helper()
	fx := &fixture{TB: t, dir: workDir(t), shards: shards, recorder: &recorder{held: map[int]int{}}}
	fx.etcd = startEtcd(t, fx.dir, members)
	fx.client = mustConnect(t, fx.endpoints()...)
	ctx, stopRecording := context.WithCancel(context.Background())
	fx.stopRecording = stopRecording
	fx.background.Go(func() { fx.recorder.follow(ctx, fx.client) })
	fx.background.Go(func() { fx.watchForStalls(ctx) })
	t.Cleanup(func() {
		for _, p := range fx.slots {
			p.process.Kill()
		}
		stopRecording()
		fx.background.Wait()
	})
	return fx
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

func (fx *fixture) endpoints() []string {
	var endpoints []string
	for _, m := range fx.etcd {
		endpoints = append(endpoints, m.endpoint())
	}
	return endpoints
}

// open starts n replicas, each behind a relay to the only etcd, or with access to all where there are several.
func (fx *fixture) startReplicas(n int, change func(*replica)) {
	fx.Helper()
	for i := range n {
		p := &slot{settings: replica{Endpoints: fx.endpoints(), Shards: fx.shards, TTL: ttl}}
		if len(fx.etcd) == 1 {
			p.relay = newRelay(fx.TB, fx.etcd[0].client)
			p.settings.Endpoints = []string{p.relay.endpoint()}
		}
		if change != nil {
			change(&p.settings)
		}
		fx.slots = append(fx.slots, p)
		if err := fx.startReplica(i); err != nil {
			fx.Fatal(err)
		}
	}
}

// occupy starts a new replica in a place.
func (fx *fixture) startReplica(at int) error {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	p := fx.slots[at]
	p.settings.ID = fmt.Sprintf("r%d-%d", at, len(fx.ids))
	p.settings.Log = fx.logFile(p.settings.ID)
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
	fx.ids = append(fx.ids, p.settings.ID)
	p.process, err = child.Start(command)
	return err
}

func (fx *fixture) logFile(id string) string { return filepath.Join(fx.dir, id+".log") }

// allAtWork waits until every shard is written to from now on. That it is claimed would mean little: the key of a holder that
// has gone may still be there.
func (fx *fixture) waitForWrites() error {
	from := fx.recorder.lastRevision()
	return fx.eventually(writeTimeout, func() error {
		versions, _, err := fx.recorder.recorded()
		written := map[int]bool{}
		for _, v := range slices.Backward(versions) {
			if v.Revision <= from {
				break
			}
			written[v.Shard] = true
		}
		if len(written) < fx.shards {
			return errors.Join(err, fmt.Errorf("%d of %d shards are worked on", len(written), fx.shards))
		}
		return err
	})
}

func (fx *fixture) eventually(within time.Duration, condition func() error) error {
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
func (fx *fixture) recordFault(kind history.FaultKind, replica string, from int64) {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	fx.faults = append(fx.faults, history.Fault{Kind: kind, Replica: replica, From: from, To: clock()})
}

// feelPulse notes each time that this process, and so in all likelihood every other, did not run for a while: what happens
// late then is not the replicas' doing.
func (fx *fixture) watchForStalls(ctx context.Context) {
	for last := clock(); ctx.Err() == nil; last = clock() {
		pause(ctx, stallCheckInterval)
		if clock()-last > int64(stallThreshold) {
			fx.recordFault(history.Stall, "", last)
		}
	}
}

// close ends the history, stops the replicas and returns what happened.
func (fx *fixture) finish() (history.History, error) {
	h := history.History{Shards: fx.shards, TTL: ttl, End: clock()}
	problems := []error{fx.stopAll(), fx.drainRecorder()}
	var err error
	if h.Versions, h.Claims, err = fx.recorder.recorded(); err != nil {
		problems = append(problems, fmt.Errorf("the witness: %w", err))
	}
	h.Faults = fx.faults
	for _, id := range fx.ids {
		log, err := fx.readLog(id)
		h.Logs, problems = append(h.Logs, log), append(problems, err)
	}
	return h, errors.Join(problems...)
}

// stopAll stops all replicas, together.
func (fx *fixture) stopAll() error {
	stops := make([]error, len(fx.slots))
	var stopping sync.WaitGroup
	for i, p := range fx.slots {
		stopping.Go(func() {
			_ = p.process.Signal(syscall.SIGTERM) // An exited process needs no signal.
			stops[i] = p.process.Wait(stopTimeout)
		})
	}
	stopping.Wait()
	return errors.Join(stops...)
}

// hearOut waits until the witness has seen everything and ends its watch.
func (fx *fixture) drainRecorder() error {
	last, err := fx.writeMarker()
	if err != nil {
		return err
	}
	err = fx.eventually(requestTimeout, func() error {
		if seen := fx.recorder.lastRevision(); seen < last {
			return fmt.Errorf("the witness has seen revision %d of %d", seen, last)
		}
		return nil
	})
	fx.stopRecording()
	fx.background.Wait()
	return err
}

// noise writes a key that means nothing and returns the revision.
func (fx *fixture) writeMarker() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	answer, err := fx.client.Put(ctx, term.Prefix(cluster)+"checkpoints/noise", "")
	if err != nil {
		return 0, fmt.Errorf("write noise: %w", err)
	}
	return answer.Header.Revision, nil
}

func (fx *fixture) readLog(id string) (history.Log, error) {
	file, err := os.Open(fx.logFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return history.Log{Replica: id}, nil // killed before it began
	}
	if err != nil {
		return history.Log{}, err
	}
	defer file.Close()
	return history.ReadLog(id, file)
}

var errNotYet = errors.New("nothing yet")

// worker waits until the replica that has claimed a shard has written there, and returns its place.
func (fx *fixture) writerOf(t testing.TB, shard int) *slot {
	t.Helper()
	var found *slot
	err := fx.eventually(writeTimeout, func() error {
		id := fx.recorder.holders()[shard]
		for _, p := range fx.slots {
			if p.settings.ID == id {
				found = p
			}
		}
		return fx.lastWriteBy(shard, id, true)
	})
	if err != nil {
		t.Fatalf("nobody does the work of shard %d: %v", shard, err)
	}
	return found
}

// lastWrite is an error until the last effective write to a shard is, or is not, by the given replica.
func (fx *fixture) lastWriteBy(shard int, by string, want bool) error {
	versions, _, err := fx.recorder.recorded()
	for _, v := range slices.Backward(versions) {
		if v.Shard != shard {
			continue
		}
		if strings.HasPrefix(v.Register.ID, by+"/") == want {
			return err
		}
		break
	}
	return errors.Join(err, errNotYet)
}
