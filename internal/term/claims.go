package term

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// batchSize is how many shards one transaction claims or releases. etcd allows 128 operations, nested ones included.
const batchSize = 32

// claim creates the keys of those shards that have none, in one transaction. It answers for each shard, in the order given,
// with its key as it is now: the shard is held if the key is bound to the lease of s, be it by this transaction or by an
// earlier one whose answer was lost. Nothing is claimed, and nothing answered, unless this replica is still a member and the
// anchor by which it was decided still is one.
func (s *session) claim(ctx context.Context, k keys, id string, anchor anchorKey, shards []int) ([]record, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var each []clientv3.Op
	for _, shard := range shards {
		key := k.term(shard)
		each = append(each, clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(key, id, clientv3.WithLease(s.id))},
			[]clientv3.Op{clientv3.OpGet(key)},
		))
	}
	response, err := s.client.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(k.member(id)), "=", s.joined),
		clientv3.Compare(clientv3.CreateRevision(anchor.key), "=", anchor.revision),
	).Then(each...).Commit()
	if err != nil {
		return nil, fmt.Errorf("claim %d shards from %q: %w", len(shards), k.term(shards[0]), err)
	}
	if !response.Succeeded {
		return nil, nil
	}
	return s.answers(response, id), nil
}

// anchorKey is the key of the member that joined first, and the revision that created it.
type anchorKey struct {
	key      string
	revision int64
}

func (s *session) answers(response *clientv3.TxnResponse, id string) []record {
	var records []record
	for _, answer := range response.Responses {
		inner := answer.GetResponseTxn()
		if inner.Succeeded {
			revision := response.Header.Revision
			records = append(records, record{revision: revision, held: true, holder: id, lease: s.id, epoch: revision})
			continue
		}
		for _, entry := range inner.Responses[0].GetResponseRange().Kvs {
			records = append(records, record{
				revision: entry.ModRevision, held: true,
				holder: string(entry.Value), lease: clientv3.LeaseID(entry.Lease), epoch: entry.CreateRevision,
			})
		}
	}
	return records
}

// release deletes the keys of terms that are over, each only if it is still the one that the claim created, in one
// transaction. It returns the shards whose keys it deleted and the revision that did it; what was gone already, or belongs
// to a later claim, is left alone and no error.
func (s *session) release(ctx context.Context, k keys, over []*holding) ([]int, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var each []clientv3.Op
	for _, h := range over {
		key := k.term(h.shard)
		each = append(each, clientv3.OpTxn(
			[]clientv3.Cmp{h.term.Guard()}, []clientv3.Op{clientv3.OpDelete(key)}, nil,
		))
	}
	response, err := s.client.Txn(ctx).Then(each...).Commit()
	if err != nil {
		return nil, 0, fmt.Errorf("release %d shards below %q: %w", len(over), k.terms, err)
	}
	var deleted []int
	for i, answer := range response.Responses {
		if answer.GetResponseTxn().Succeeded {
			deleted = append(deleted, over[i].shard)
		}
	}
	return deleted, response.Header.Revision, nil
}

// announce replaces the value of the member key, unless the key is gone.
func (s *session) announce(ctx context.Context, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", s.joined)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(s.id))).Commit()
	if err != nil {
		return fmt.Errorf("update member key %q: %w", key, err)
	}
	return nil
}

// withdraw deletes the member key, so that others stop expecting anything of this replica although its lease still lives.
func (s *session) withdraw(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", s.joined)).
		Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return fmt.Errorf("delete member key %q: %w", key, err)
	}
	return nil
}
