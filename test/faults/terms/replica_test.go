package terms

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// replicaVariable holds the JSON of a replica. It makes the test binary run that replica
	// instead of the tests.
	replicaVariable = "TRIVET_FAULTS_REPLICA"

	service = "leasesvc"
	cluster = "faults"

	// opTimeout bounds each request of a replica to etcd.
	opTimeout = 500 * time.Millisecond
)

func termsPrefix() string          { return etcdconn.KeyPrefix(cluster) + "terms/" + service + "/" }
func registersPrefix() string      { return etcdconn.KeyPrefix(cluster) + "checkpoints/" + service + "/" }
func registerKey(shard int) string { return fmt.Sprintf("%s%d", registersPrefix(), shard) }
func memberKey(id string) string {
	return etcdconn.KeyPrefix(cluster) + "members/" + service + "/" + id
}

// format and parse convert a register to and from its value in etcd.
func format(r history.Register) string { return fmt.Sprintf("%d %s", r.Epoch, r.ID) }

func parse(value []byte) (r history.Register, err error) {
	_, err = fmt.Sscanf(string(value), "%d %s", &r.Epoch, &r.ID)
	return r, err
}

// replica configures one process under test.
type replica struct {
	ID     string
	Etcd   etcdconn.Config
	Shards int
	TTL    time.Duration
	// Log is the path of the file for its events.
	Log string
	// Unguarded replicas neither check their terms nor guard their writes. They show that package
	// history finds violations.
	Unguarded bool
}

// runReplica runs the replica that the environment describes until SIGTERM, and returns the exit
// code.
func runReplica() int {
	var r replica
	err := json.Unmarshal([]byte(os.Getenv(replicaVariable)), &r)
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (r replica) run() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	file, err := os.OpenFile(r.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	client, err := connect(r.Etcd)
	if err != nil {
		return err
	}
	defer client.Close()
	candidate, err := term.New(client, term.Config{
		Member: term.Member{ID: r.ID, Service: service, Cluster: cluster, StartTime: time.Now()},
		Shards: r.Shards, TTL: r.TTL, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	w := &replicaWorker{replica: r, client: client, file: file}
	var reading sync.WaitGroup
	reading.Go(func() { w.read(ctx) })
	err = candidate.Run(ctx, w.body)
	reading.Wait()
	return err
}

// replicaWorker runs the term bodies of one process.
type replicaWorker struct {
	replica
	client *clientv3.Client
	file   *os.File
}

// logEvent appends an event by a single write, which a later kill cannot split.
func (w *replicaWorker) logEvent(e history.Event) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = w.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // An incomplete log proves nothing.
	}
}

// body writes the register and concurrently checks the term.
func (w *replicaWorker) body(ctx context.Context, t *term.Term) error {
	if w.Unguarded {
		var unstoppable context.CancelFunc
		ctx, unstoppable = context.WithCancel(context.WithoutCancel(ctx))
		defer unstoppable()
	}
	var checking sync.WaitGroup
	checking.Go(func() {
		for ctx.Err() == nil {
			w.check(t)
			testkit.Pause(ctx, 25*time.Millisecond)
		}
	})
	for n := 0; ctx.Err() == nil; n++ {
		if w.check(t) {
			testkit.Pause(ctx, rand.N(20*time.Millisecond)) // of work between check and write
			w.write(t, history.Register{Epoch: t.Epoch(), ID: fmt.Sprintf("%s/%d/%d/%d", w.ID, t.Shard(), t.Epoch(), n)})
		}
		testkit.Pause(ctx, 20*time.Millisecond+rand.N(60*time.Millisecond))
	}
	checking.Wait()
	return nil
}

// check checks the term and logs an event if the body may act.
func (w *replicaWorker) check(t *term.Term) bool {
	from := clock()
	if !w.Unguarded && t.Check() != nil {
		return false
	}
	w.logEvent(history.Event{Kind: history.Passed, Shard: t.Shard(), Value: history.Register{Epoch: t.Epoch()}, From: from, To: clock()})
	return true
}

// write writes the shard's register if the guard holds, and reads it otherwise. It does not stop at
// the end of the term: like a request in flight, only the guard protects against it.
func (w *replicaWorker) write(t *term.Term, value history.Register) {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	event := history.Event{Kind: history.Wrote, Shard: t.Shard(), Value: value, From: clock()}
	w.logEvent(event)
	key := registerKey(t.Shard())
	var guards []clientv3.Cmp
	if !w.Unguarded {
		guards = append(guards, t.Guard())
	}
	answer, err := w.client.Txn(ctx).If(guards...).
		Then(clientv3.OpPut(key, format(value))).Else(clientv3.OpGet(key)).Commit()
	event.To = clock()
	if err != nil {
		return // The outcome is unknown.
	}
	if event.Outcome = history.Applied; !answer.Succeeded {
		event.Outcome = history.Refused
		event.Seen = registerIn((*clientv3.GetResponse)(answer.Responses[0].GetResponseRange()))
	}
	w.logEvent(event)
}

// read reads random registers until ctx ends.
func (w *replicaWorker) read(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		event := history.Event{Kind: history.Read, Shard: rand.IntN(w.Shards), ID: fmt.Sprintf("%s/%d", w.ID, n), From: clock()}
		if answer, err := w.get(ctx, event.Shard); err == nil {
			event.To, event.Outcome, event.Seen = clock(), history.Answered, registerIn(answer)
			w.logEvent(event)
		}
		testkit.Pause(ctx, 20*time.Millisecond+rand.N(40*time.Millisecond))
	}
}

func (w *replicaWorker) get(ctx context.Context, shard int) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	return w.client.Get(ctx, registerKey(shard))
}

func registerIn(answer *clientv3.GetResponse) history.Register {
	if len(answer.Kvs) == 0 {
		return history.Register{}
	}
	r, err := parse(answer.Kvs[0].Value)
	if err != nil {
		panic(err) // Only replicas write registers.
	}
	return r
}

// clock reads the monotonic clock, which all processes of a machine share. It continues while a
// process is frozen.
func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // Only an unknown clock or a bad address can fail.
	}
	return now.Nano()
}
