package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
)

// candidateVariable holds the JSON of a candidate. It makes this binary run that candidate.
const candidateVariable = "TRIVET_BENCH_TERM_CANDIDATE"

// mechanism is a mechanism of leader election.
type mechanism string

const (
	terms     mechanism = "internal/term"
	leases    mechanism = "client-go leaderelection"
	elections mechanism = "etcd concurrency.Election"
)

// candidateConfig configures the process of a candidate.
type candidateConfig struct {
	Mechanism mechanism
	// ID identifies the candidate. Every process has a new one.
	ID string
	// Group separates the groups of candidates on one cluster.
	Group string
	// Shards is the number of shards of a candidate of internal/term, or the number of concurrent
	// locks or elections.
	Shards int

	Endpoints                 []string // of etcd
	CAFile, CertFile, KeyFile string
	Kubeconfig                string // empty without kube-apiserver
}

// message is a message of a candidate on its standard output, as the line "<message> <shard>".
type message string

const (
	ready   message = "ready"   // it can take over from a holder from now on
	began   message = "began"   // its body for the shard runs
	ended   message = "ended"   // its body has returned
	request message = "request" // it sends a request to kube-apiserver
)

// report writes the messages of a candidate. It is safe for concurrent use, because each line is
// one write.
type report struct{ out io.Writer }

func (r report) send(what message, shard int) { fmt.Fprintf(r.out, "%s %d\n", what, shard) }

// act is the body of every mechanism. It waits for ctx.
func (r report) act(ctx context.Context, shard int) {
	r.send(began, shard)
	<-ctx.Done()
	r.send(ended, shard)
}

// candidateAsChild runs a candidate until standard input is closed, also by the death of the
// parent. It returns the exit code.
func candidateAsChild(value string) int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var c candidateConfig
	err := json.Unmarshal([]byte(value), &c)
	if err == nil {
		err = c.run(ctx, report{out: os.Stdout})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// run blocks until ctx ends and all shards are released.
func (c candidateConfig) run(ctx context.Context, r report) error {
	switch c.Mechanism {
	case terms:
		return c.runTerms(ctx, r)
	case leases:
		return c.runLeases(ctx, r)
	case elections:
		return c.runElections(ctx, r)
	default:
		return fmt.Errorf("unknown mechanism %q", c.Mechanism)
	}
}

// etcd returns the same connection as Trivet's processes have, so that only the mechanisms on etcd
// differ.
func (c candidateConfig) etcd() (*clientv3.Client, error) {
	return etcdconn.Connect(etcdconn.Config{
		Endpoints: c.Endpoints, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
	}, slog.New(slog.DiscardHandler))
}
