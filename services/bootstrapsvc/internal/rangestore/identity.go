package rangestore

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ClusterIdentity is the Service default/kubernetes as the API shows it, of which every cluster has one of its own.
type ClusterIdentity struct{ UID, ResourceVersion string }

// identityKey is where kube-apiserver keeps it, below its prefix.
const identityKey = "/services/specs/default/kubernetes"

// encrypted is what a value begins with that kube-apiserver encrypts at rest. Ranges never are.
const encrypted = "k8s:enc:"

// VerifyCluster says why the ranges may be those of another cluster than the witness's; empty if they are not. Read the witness right
// before: of one whose value is encrypted only the revision can be compared.
func (s *Store) VerifyCluster(ctx context.Context, of ClusterIdentity) (string, error) {
	key := s.root + identityKey
	response, err := s.client.Get(ctx, key)
	if err != nil {
		return "", fmt.Errorf("read %s: %w: %w", key, ErrUnavailable, err)
	}
	if len(response.Kvs) == 0 {
		return fmt.Sprintf("etcd has no key %s, so below %s is nothing of this cluster: see --etcd-prefix and --etcd-servers", key, s.root), nil
	}
	if kv := response.Kvs[0]; !of.matches(kv.Value, kv.ModRevision) {
		return fmt.Sprintf("the key %s is of another service than the API shows, so what is below %s is of another cluster: "+
			"see --etcd-prefix and --etcd-servers", key, s.root), nil
	}
	return "", nil
}

// matches needs no decoding: a UID is random, and stored as text in every encoding.
func (w ClusterIdentity) matches(value []byte, revision int64) bool {
	if bytes.HasPrefix(value, []byte(encrypted)) {
		return w.ResourceVersion == strconv.FormatInt(revision, 10)
	}
	return w.UID != "" && bytes.Contains(value, []byte(w.UID))
}

var _ Client = (*clientv3.Client)(nil)
