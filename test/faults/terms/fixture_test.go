package terms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/internal/etcdconn"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// ttl is the shortest TTL that etcd grants.
	ttl = 2 * time.Second
	// writeTimeout is well above the time until all shards are written on a loaded machine.
	writeTimeout = 30 * time.Second
	// stopTimeout is the stop timeout of a replica plus a margin.
	stopTimeout = 15 * time.Second
	// A pause of stallCheckInterval that takes longer than stallThreshold is recorded as a stall.
	stallCheckInterval = 10 * time.Millisecond
	stallThreshold     = 150 * time.Millisecond
	// requestTimeout bounds the test's own requests to etcd.
	requestTimeout = 10 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(runReplica())
	}
	goleak.VerifyTestMain(m)
}

// fixture runs etcd, a recorder of its changes, and replicas behind relays.
type fixture struct {
	testing.TB
	dir           string
	shards        int
	etcd          *devcluster.Cluster
	client        *clientv3.Client
	recorder      *recorder
	background    sync.WaitGroup
	stopRecording context.CancelFunc

	// etcdFaults serializes the faults that involve etcd. On a slow machine, the start of etcd can
	// take longer than the schedule's pauses.
	etcdFaults sync.Mutex

	mu     sync.Mutex // guards the following fields
	slots  []*slot
	ids    []string // of all replicas, also of killed ones
	faults []history.Fault
}

// slot holds a running replica. A new replica takes the slot of a killed one.
type slot struct {
	relay    *faultproxy.Relay
	settings replica
	process  *childprocess.Child
}

// newFixture starts etcd and the recorder.
func newFixture(t testing.TB, members, shards int) *fixture {
	t.Helper()
	fx := &fixture{TB: t, dir: workDir(t), shards: shards, recorder: &recorder{current: map[int]int{}}}
	fx.etcd = startEtcd(t, fx.dir, members)
	var err error
	if fx.client, err = connect(fx.connection()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fx.client.Close() })
	ctx, stopRecording := context.WithCancel(context.Background())
	fx.stopRecording = stopRecording
	fx.background.Go(func() { fx.recorder.follow(ctx, fx.client) })
	fx.background.Go(func() { fx.watchForStalls(ctx) })
	t.Cleanup(func() {
		for _, s := range fx.slots {
			s.process.Kill()
		}
		stopRecording()
		fx.background.Wait()
	})
	return fx
}

// workDir returns a temporary directory or, with -faults.keep, one that remains after the test.
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

// connection is how to reach all members of etcd.
func (fx *fixture) connection() etcdconn.Config {
	cfg := etcdconn.Config{Endpoints: fx.etcd.EtcdEndpoints()}
	cfg.CAFile, cfg.CertFile, cfg.KeyFile = fx.etcd.EtcdFiles()
	return cfg
}

// startReplicas starts n replicas. With one etcd member, each replica connects through its own
// relay. With several members, it connects to all of them directly.
func (fx *fixture) startReplicas(n int, change func(*replica)) {
	fx.Helper()
	for i := range n {
		s := &slot{settings: replica{Etcd: fx.connection(), Shards: fx.shards, TTL: ttl}}
		if endpoints := fx.etcd.EtcdEndpoints(); len(endpoints) == 1 {
			s.relay = faultproxy.NewRelay(fx.TB, strings.TrimPrefix(endpoints[0], "https://"))
			s.settings.Etcd.Endpoints = []string{"https://" + s.relay.Addr()}
		}
		if change != nil {
			change(&s.settings)
		}
		fx.slots = append(fx.slots, s)
		if err := fx.startReplica(i); err != nil {
			fx.Fatal(err)
		}
	}
}

// startReplica starts a new replica in the slot at an index.
func (fx *fixture) startReplica(at int) error {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	s := fx.slots[at]
	s.settings.ID = fmt.Sprintf("r%d-%d", at, len(fx.ids))
	s.settings.Log = fx.logFile(s.settings.ID)
	settings, err := json.Marshal(s.settings)
	if err != nil {
		return err
	}
	fx.ids = append(fx.ids, s.settings.ID)
	s.process, err = childprocess.Start(childprocess.Config{
		Name: s.settings.ID, Env: []string{replicaVariable + "=" + string(settings)}, Log: s.settings.Log + ".stderr",
	})
	return err
}

func (fx *fixture) logFile(id string) string { return filepath.Join(fx.dir, id+".log") }

// waitForWrites waits until a new write to every shard takes effect. A claim is no sufficient
// condition: the key of a killed replica can still exist.
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
			return errors.Join(err, fmt.Errorf("%d of %d shards are written", len(written), fx.shards))
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
		testkit.Pause(ctx, 10*time.Millisecond)
	}
}

// recordFault records a fault that ends now.
func (fx *fixture) recordFault(kind history.FaultKind, replica string, from int64) {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	fx.faults = append(fx.faults, history.Fault{Kind: kind, Replica: replica, From: from, To: clock()})
}

// watchForStalls records each time in which this process did not run. The replicas did probably not
// run either.
func (fx *fixture) watchForStalls(ctx context.Context) {
	for last := clock(); ctx.Err() == nil; last = clock() {
		testkit.Pause(ctx, stallCheckInterval)
		if clock()-last > int64(stallThreshold) {
			fx.recordFault(history.Stall, "", last)
		}
	}
}

// finish ends the history, stops the replicas and returns the history.
func (fx *fixture) finish() (history.History, error) {
	h := history.History{Shards: fx.shards, TTL: ttl, End: clock()}
	problems := []error{fx.stopAll(), fx.drainRecorder()}
	var err error
	if h.Versions, h.Claims, err = fx.recorder.recorded(); err != nil {
		problems = append(problems, fmt.Errorf("recorder: %w", err))
	}
	h.Faults = fx.faults
	for _, id := range fx.ids {
		log, err := fx.readLog(id)
		h.Logs, problems = append(h.Logs, log), append(problems, err)
	}
	return h, errors.Join(problems...)
}

// stopAll stops all replicas concurrently.
func (fx *fixture) stopAll() error {
	stops := make([]error, len(fx.slots))
	var stopping sync.WaitGroup
	for i, s := range fx.slots {
		stopping.Go(func() {
			_ = s.process.Signal(syscall.SIGTERM) // An exited process needs no signal.
			stops[i] = s.process.Wait(stopTimeout)
		})
	}
	stopping.Wait()
	return errors.Join(stops...)
}

// drainRecorder waits until the recorder is current, and stops it.
func (fx *fixture) drainRecorder() error {
	last, err := fx.writeMarker()
	if err != nil {
		return err
	}
	err = fx.eventually(requestTimeout, func() error {
		if seen := fx.recorder.lastRevision(); seen < last {
			return fmt.Errorf("the recorder is at revision %d of %d", seen, last)
		}
		return nil
	})
	fx.stopRecording()
	fx.background.Wait()
	return err
}

// writeMarker writes a key without a meaning and returns its revision.
func (fx *fixture) writeMarker() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	answer, err := fx.client.Put(ctx, etcdconn.KeyPrefix(cluster)+"checkpoints/marker", "")
	if err != nil {
		return 0, fmt.Errorf("write a marker: %w", err)
	}
	return answer.Header.Revision, nil
}

func (fx *fixture) readLog(id string) (history.Log, error) {
	file, err := os.Open(fx.logFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return history.Log{Replica: id}, nil // killed before its first event
	}
	if err != nil {
		return history.Log{}, err
	}
	defer file.Close()
	return history.ReadLog(id, file)
}

var errNotYet = errors.New("not yet")

// writerOf waits until the replica that has claimed a shard has also written it, and returns its
// slot.
func (fx *fixture) writerOf(t testing.TB, shard int) *slot {
	t.Helper()
	var found *slot
	err := fx.eventually(writeTimeout, func() error {
		id := fx.recorder.holders()[shard]
		for _, s := range fx.slots {
			if s.settings.ID == id {
				found = s
			}
		}
		return fx.lastWriteBy(shard, id, true)
	})
	if err != nil {
		t.Fatalf("no replica writes shard %d: %v", shard, err)
	}
	return found
}

// lastWriteBy returns nil if the last effective write to a shard is by the given replica (want
// true) or by another one (want false).
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
