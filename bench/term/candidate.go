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

// seatVariable makes this binary stand as a candidate, as the JSON in it says, and nothing else.
const seatVariable = "TRIVET_BENCH_TERM_SEAT"

// mechanism is a way to choose the replica that acts for a shard.
type mechanism string

const (
	terms     mechanism = "internal/term"
	leases    mechanism = "client-go leaderelection"
	elections mechanism = "etcd concurrency.Election"
)

// seat is all that a candidate's process has to know.
type seat struct {
	Mechanism mechanism
	// ID of the candidate, new with every process.
	ID string
	// Contest keeps apart the groups of candidates that share a cluster.
	Contest string
	// Shards to stand for: the shards of one candidate of internal/term, or as many locks or
	// elections beside each other.
	Shards int

	Endpoints                 []string // of etcd
	CAFile, CertFile, KeyFile string
	Kubeconfig                string // empty where there is no kube-apiserver
}

// word is what a candidate says on its standard output, "<word> <shard>" in a line.
type word string

const (
	ready   word = "ready"   // it can succeed a holder from now on
	began   word = "began"   // its body for the shard runs
	ended   word = "ended"   // its body has returned
	request word = "request" // it sends a request to kube-apiserver
)

// report says what happens to a candidate. It may be used concurrently, because each line is one
// write.
type report struct{ out io.Writer }

func (h report) say(what word, shard int) { fmt.Fprintf(h.out, "%s %d\n", what, shard) }

// act is the body of every mechanism: it does nothing until it is told to end.
func (h report) act(ctx context.Context, shard int) {
	h.say(began, shard)
	<-ctx.Done()
	h.say(ended, shard)
}

// standAsChild stands as a candidate until standard input ends, as it does when the parent closes
// it or dies. It returns the exit code.
func standAsChild(value string) int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var s seat
	err := json.Unmarshal([]byte(value), &s)
	if err == nil {
		err = s.stand(ctx, report{out: os.Stdout})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// stand blocks until ctx ends and everything held has been given up.
func (s seat) stand(ctx context.Context, h report) error {
	switch s.Mechanism {
	case terms:
		return s.standForTerms(ctx, h)
	case leases:
		return s.standForLeases(ctx, h)
	case elections:
		return s.standForElections(ctx, h)
	default:
		return fmt.Errorf("unknown mechanism %q", s.Mechanism)
	}
}

// etcd is the connection that Trivet's processes use. Both mechanisms on etcd get it, so that only
// they differ.
func (s seat) etcd() (*clientv3.Client, error) {
	return etcdconn.Connect(etcdconn.Config{
		Endpoints: s.Endpoints, CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile,
	}, slog.New(slog.DiscardHandler))
}
