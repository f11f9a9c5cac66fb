package rangestore

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ClusterIdentity is the metadata of the Service default/kubernetes, of which every cluster has its
// own.
type ClusterIdentity struct{ UID, ResourceVersion string }

// identityKey is the key of the Service default/kubernetes below kube-apiserver's prefix.
const identityKey = "/services/specs/default/kubernetes"

// encryptedPrefix begins a value that kube-apiserver encrypts at rest. It never encrypts ranges.
const encryptedPrefix = "k8s:enc:"

// VerifyCluster returns why the ranges may belong to another cluster than identity, and an empty
// text if they belong to it. The caller must read identity right before: of an encrypted value,
// only the revision can be compared.
func (s *Store) VerifyCluster(ctx context.Context, identity ClusterIdentity) (problem string, err error) {
	key := s.root + identityKey
	response, err := s.client.Get(ctx, key)
	if err != nil {
		return "", fmt.Errorf("read %s: %w: %w", key, ErrUnavailable, err)
	}
	if len(response.Kvs) == 0 {
		return fmt.Sprintf("etcd has no key %s, so below %s is nothing of this cluster: see --etcd-prefix and --etcd-servers", key, s.root), nil
	}
	if kv := response.Kvs[0]; !identity.matches(kv.Value, kv.ModRevision) {
		return fmt.Sprintf("the key %s is of another service than the API shows, so what is below %s is of another cluster: "+
			"see --etcd-prefix and --etcd-servers", key, s.root), nil
	}
	return "", nil
}

// matches reports whether a stored value has this identity. It does not decode the value: a UID is
// random, and stored as text in every encoding.
func (i ClusterIdentity) matches(value []byte, revision int64) bool {
	if bytes.HasPrefix(value, []byte(encryptedPrefix)) {
		return i.ResourceVersion == strconv.FormatInt(revision, 10)
	}
	return i.UID != "" && bytes.Contains(value, []byte(i.UID))
}

var _ Client = (*clientv3.Client)(nil)
