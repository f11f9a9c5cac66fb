package repairstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

var (
	// ErrUnavailable: etcd did not answer, or not in time. A write may have happened.
	ErrUnavailable = errors.New("etcd unavailable")
	// ErrExists: a part that is written once exists already. Nothing was written.
	ErrExists = errors.New("written before")
)

// maxOps is how many keys one transaction writes. etcd rejects more than 128.
const maxOps = 100

// Client has the methods of *clientv3.Client that a Store calls.
type Client interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
}

// Store stores the findings and repairs of one cluster. It keeps no state of its own.
type Store struct {
	client   Client
	findings string
	repairs  string
}

// New returns the store of the cluster whose keys begin with clusterPrefix.
func New(client Client, clusterPrefix string) *Store {
	return &Store{client: client, findings: clusterPrefix + "findings/", repairs: clusterPrefix + "repairs/"}
}

func (s *Store) findingKey(name string) string {
	return s.findings + strings.TrimPrefix(name, "findings/")
}

// Findings returns all stored findings, ordered by name and without their steps, and the number of
// unreadable ones.
func (s *Store) Findings(ctx context.Context) (stored []allocation.Finding, unreadable int, err error) {
	err = s.read(ctx, s.findings, func(name string, value []byte) {
		var finding allocation.Finding
		if json.Unmarshal(value, &finding) != nil || finding.Name != "findings/"+name {
			unreadable++
			return
		}
		stored = append(stored, finding)
	})
	return stored, unreadable, err
}

// WriteFindings writes findings, without their steps, and then deletes the findings with the given
// names.
func (s *Store) WriteFindings(ctx context.Context, findings []allocation.Finding, deleted []string) error {
	var writes []write
	for _, finding := range findings {
		finding.Steps = nil
		w, err := put(s.findingKey(finding.Name), finding)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	for _, name := range deleted {
		writes = append(writes, write{op: clientv3.OpDelete(s.findingKey(name))})
	}
	return s.commit(ctx, writes)
}

// write is one key to write or delete.
type write struct {
	op clientv3.Op
	// absentKey is the key if it must not exist.
	absentKey string
}

func put(key string, value any) (write, error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return write{}, fmt.Errorf("encode %s: %w", key, err)
	}
	return write{op: clientv3.OpPut(key, string(encoded))}, nil
}

func create(key string, value any) (write, error) {
	w, err := put(key, value)
	w.absentKey = key
	return w, err
}

func (s *Store) createOne(ctx context.Context, key string, value any) error {
	w, err := create(key, value)
	if err != nil {
		return err
	}
	return s.commit(ctx, []write{w})
}

// commit makes the writes in order under the term of ctx, maxOps in each transaction. After an
// error, earlier transactions stay.
func (s *Store) commit(ctx context.Context, writes []write) error {
	for len(writes) > 0 {
		n := min(len(writes), maxOps)
		transaction := guarded.Transaction{Conflict: ErrExists, Unavailable: ErrUnavailable}
		for _, w := range writes[:n] {
			transaction.Writes = append(transaction.Writes, w.op)
			if w.absentKey != "" {
				transaction.Conditions = append(transaction.Conditions, clientv3.Compare(clientv3.CreateRevision(w.absentKey), "=", 0))
			}
		}
		if _, err := transaction.Commit(ctx, s.client.Txn); err != nil {
			return fmt.Errorf("write findings and repairs: %w", err)
		}
		writes = writes[n:]
	}
	return nil
}

func (s *Store) read(ctx context.Context, prefix string, visit func(name string, value []byte)) error {
	response, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("read findings and repairs: %w: %w", ErrUnavailable, err)
	}
	for _, kv := range response.Kvs {
		visit(string(kv.Key[len(prefix):]), kv.Value)
	}
	return nil
}
