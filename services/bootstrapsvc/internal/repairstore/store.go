package repairstore

import (
	"context"
	"crypto/rand"
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
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
}

// Store stores the findings, plans and repairs of one cluster. It keeps no state of its own.
type Store struct {
	client   Client
	findings string
	ignores  string
	plans    string
	repairs  string
}

// New returns the store of the cluster whose keys begin with clusterPrefix.
func New(client Client, clusterPrefix string) *Store {
	return &Store{
		client: client, findings: clusterPrefix + "findings/", ignores: clusterPrefix + "ignores/",
		plans: clusterPrefix + "repairplans/", repairs: clusterPrefix + "repairs/",
	}
}

// idLength is short, because people type IDs. Of a thousand new ones beside a thousand stored ones,
// one in a million exists already.
const idLength = 8

// NewID returns a random ID for a plan or a repair, of lower-case letters and digits. It may exist
// already: CreatePlan and Begin then fail with ErrExists, and the caller takes another one.
func NewID() string { return strings.ToLower(rand.Text()[:idLength]) }

func (s *Store) findingKey(name string) string {
	return s.findings + strings.TrimPrefix(name, "findings/")
}

// Findings returns all stored findings, ordered by name and without their steps, and the number of
// unreadable ones.
func (s *Store) Findings(ctx context.Context) (stored []allocation.Finding, unreadable int, err error) {
	_, err = s.read(ctx, s.findings, func(name string, value []byte) {
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

// Ignores returns the marks of ignored findings, ordered by finding, and the number of unreadable
// ones.
func (s *Store) Ignores(ctx context.Context) (stored []allocation.Ignore, unreadable int, err error) {
	_, err = s.read(ctx, s.ignores, func(name string, value []byte) {
		var ignore allocation.Ignore
		if json.Unmarshal(value, &ignore) != nil || ignore.Finding != "findings/"+name {
			unreadable++
			return
		}
		stored = append(stored, ignore)
	})
	return stored, unreadable, err
}

// WriteIgnores writes marks, and then deletes the marks of the findings with the given names.
func (s *Store) WriteIgnores(ctx context.Context, ignores []allocation.Ignore, deleted []string) error {
	var writes []write
	for _, ignore := range ignores {
		w, err := put(s.ignoreKey(ignore.Finding), ignore)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	for _, name := range deleted {
		writes = append(writes, write{op: clientv3.OpDelete(s.ignoreKey(name))})
	}
	return s.commit(ctx, writes)
}

func (s *Store) ignoreKey(finding string) string {
	return s.ignores + strings.TrimPrefix(finding, "findings/")
}

// write is one key to write or delete.
type write struct {
	op clientv3.Op
	// absentKeys must not exist.
	absentKeys []string
}

func put(key string, value any) (write, error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return write{}, fmt.Errorf("encode %s: %w", key, err)
	}
	return write{op: clientv3.OpPut(key, string(encoded))}, nil
}

// create returns the write of a key that does not exist, while none of the other keys does.
func create(key string, value any, others ...string) (write, error) {
	w, err := put(key, value)
	w.absentKeys = append(others, key)
	return w, err
}

// commit makes the writes in order under the term of ctx, maxOps in each transaction. After an
// error, earlier transactions stay.
func (s *Store) commit(ctx context.Context, writes []write) error {
	for len(writes) > 0 {
		n := min(len(writes), maxOps)
		transaction := guarded.Transaction{Conflict: ErrExists, Unavailable: ErrUnavailable}
		for _, w := range writes[:n] {
			transaction.Writes = append(transaction.Writes, w.op)
			for _, key := range w.absentKeys {
				transaction.Conditions = append(transaction.Conditions, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
			}
		}
		if _, err := transaction.Commit(ctx, s.client.Txn); err != nil {
			return fmt.Errorf("write findings and repairs: %w", err)
		}
		writes = writes[n:]
	}
	return nil
}

// read calls visit for each key below prefix, in their order, and returns the revision of the read.
func (s *Store) read(ctx context.Context, prefix string, visit func(name string, value []byte)) (revision int64, err error) {
	response, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("read findings and repairs: %w", guarded.ClassifyEtcd(err, ErrUnavailable))
	}
	for _, kv := range response.Kvs {
		visit(string(kv.Key[len(prefix):]), kv.Value)
	}
	return response.Header.Revision, nil
}

// records are the parts of stored plans or repairs, by ID and part.
type records map[string]map[string][]byte

func (r records) put(name string, value []byte) (id string) {
	id, part, _ := strings.Cut(name, "/")
	if r[id] == nil {
		r[id] = map[string][]byte{}
	}
	r[id][part] = value
	return id
}

func (r records) delete(name string) (id string) {
	id, part, _ := strings.Cut(name, "/")
	delete(r[id], part)
	if len(r[id]) == 0 {
		delete(r, id)
	}
	return id
}

// readAll reads all records below a prefix. An unreadable one is skipped and counted.
func readAll[T any](ctx context.Context, s *Store, prefix string, decode func(id string, parts map[string][]byte) (T, error)) (stored []T, unreadable int, err error) {
	found := records{}
	if _, err := s.read(ctx, prefix, func(name string, value []byte) { found.put(name, value) }); err != nil {
		return nil, 0, err
	}
	for id, parts := range found {
		record, err := decode(id, parts)
		if err != nil {
			unreadable++
			continue
		}
		stored = append(stored, record)
	}
	return stored, unreadable, nil
}

// readOne reads the record with an ID. An unreadable one does not exist for the caller.
func readOne[T any](ctx context.Context, s *Store, prefix, id string, decode func(id string, parts map[string][]byte) (T, error)) (record T, exists bool, err error) {
	parts := map[string][]byte{}
	if _, err := s.read(ctx, prefix+id+"/", func(part string, value []byte) { parts[part] = value }); err != nil {
		return record, false, err
	}
	record, err = decode(id, parts)
	return record, err == nil, nil
}
