package term_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/term"
)

// childVariable makes the test binary run one replica, with the JSON in it as configuration.
const childVariable = "TRIVET_TERM_TEST_CHILD"

// child is a replica in its own process, which a test can stop and kill.
type child struct {
	Endpoints []string
	Files     [3]string // CA, certificate, key
	Member    term.Member
	TTL       time.Duration
	// Counter is the key that the body writes repeatedly under its guard, with its epoch.
	Counter string
}

// runChild runs a replica until a signal. Its body prints "checked <epoch> <nanoseconds>" after
// each passed check, and then writes under the guard without another check.
func runChild() int {
	var c child
	if err := json.Unmarshal([]byte(os.Getenv(childVariable)), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := c.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (c child) run() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	files := identity.Files{CAFile: c.Files[0], CertFile: c.Files[1], KeyFile: c.Files[2]}
	tlsIdentity, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	tls := tlsIdentity.TLS()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints, TLS: tls, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	candidate, err := term.New(client, term.Config{
		Member: c.Member, Shards: 1, TTL: c.TTL, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return candidate.Run(ctx, func(ctx context.Context, held *term.Term) error { return c.write(ctx, client, held) })
}

func (c child) write(ctx context.Context, client *clientv3.Client, held *term.Term) error {
	for ctx.Err() == nil {
		if held.Check() != nil {
			continue // the context is about to end; a busy loop finds a gap between the two
		}
		fmt.Printf("checked %d %d\n", held.Epoch(), time.Now().UnixNano())
		_, err := client.Txn(ctx).If(held.Guard()).
			Then(clientv3.OpPut(c.Counter, strconv.FormatInt(held.Epoch(), 10))).Commit()
		if err != nil {
			return err
		}
	}
	return nil
}

// A process that was frozen for longer than its lease must find its term ended. After the wake-up,
// no check may pass under the old epoch, and no old write may take effect after a newer one.
func TestFault_FrozenProcessWakesUpToTheEndOfItsTerm(t *testing.T) {
	t.Parallel()
	cluster := etcd(t)
	client := dial(t, cluster, &faultyConn{})
	counter := fmt.Sprintf("%scounter-%d", etcdconn.KeyPrefix(clusterName(t)), time.Now().UnixNano())
	c := child{
		Endpoints: cluster.EtcdEndpoints(), TTL: 2 * time.Second, Counter: counter,
		Member: term.Member{ID: "a", Service: service, Cluster: clusterName(t), StartTime: time.Now()},
	}
	c.Files[0], c.Files[1], c.Files[2] = cluster.EtcdFiles()
	process, lines := c.start(t)
	epoch := int64(0)
	h := newHistory()
	other := lower("a")
	join(t, cluster, other, h.body(other))
	for range 3 {
		// The replica gets its shard back at a higher epoch and is frozen while it works.
		for range 20 {
			now := receive(t, lines)
			if now.epoch < epoch {
				t.Fatalf("a check passed under epoch %d after the wake-up, but others have acted since", now.epoch)
			}
			epoch = max(epoch, now.epoch)
		}
		signalTo(t, process, syscall.SIGSTOP)
		next := waitFor(t, h, other)
		if _, err := client.Put(t.Context(), counter, strconv.FormatInt(next.epoch, 10)); err != nil {
			t.Fatal(err)
		}
		drain(lines)
		epoch = next.epoch + 1
		signalTo(t, process, syscall.SIGCONT)
	}
	onlyNewerEpochs(t, client, counter)
}

// onlyNewerEpochs reads every version of the counter and checks that epochs do not decrease.
func onlyNewerEpochs(t *testing.T, client *clientv3.Client, counter string) {
	t.Helper()
	last, err := client.Get(t.Context(), counter)
	if err != nil || len(last.Kvs) != 1 {
		t.Fatal(last, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	present, versions := int64(0), 0
	for answer := range client.Watch(ctx, counter, clientv3.WithRev(last.Kvs[0].CreateRevision)) {
		if err := answer.Err(); err != nil {
			t.Fatal(err)
		}
		for _, event := range answer.Events {
			epoch, err := strconv.ParseInt(string(event.Kv.Value), 10, 64)
			if err != nil || epoch < present {
				t.Fatalf("epoch %s was written after %d: %v", event.Kv.Value, present, err)
			}
			present = epoch
			versions++
			if event.Kv.ModRevision >= last.Kvs[0].ModRevision {
				t.Logf("%d writes took effect, none under an old epoch", versions)
				return
			}
		}
	}
	t.Fatal("the watch ended early")
}

// line is one passed check of a child.
type line struct {
	epoch int64
	at    time.Time
}

// start runs the child until the test ends. The channel receives its output.
func (c child) start(t *testing.T) (*os.Process, <-chan line) {
	t.Helper()
	settings, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childVariable+"="+string(settings))
	command.Stderr = t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan line, 1<<16)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- parse(scanner.Text())
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-read
		_ = command.Wait()
	})
	return command.Process, lines
}

func parse(text string) line {
	var epoch, at int64
	if _, err := fmt.Sscanf(text, "checked %d %d", &epoch, &at); err != nil {
		return line{}
	}
	return line{epoch: epoch, at: time.Unix(0, at)}
}

func drain(lines <-chan line) {
	for len(lines) > 0 {
		<-lines
	}
}

func signalTo(t *testing.T, process *os.Process, what syscall.Signal) {
	t.Helper()
	if err := process.Signal(what); err != nil {
		t.Fatalf("%v: %v", what, err)
	}
}
