package apiserverscontroller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

// MasterLeaseReader reads the keys of kube-apiserver's own reconciler. It keeps no state and is
// safe for concurrent use.
type MasterLeaseReader struct {
	client Etcd
	prefix string
}

// NewMasterLeaseReader returns a reader for kube-apiservers that run with this --etcd-prefix. It
// makes no connection.
func NewMasterLeaseReader(client Etcd, etcdPrefix string) *MasterLeaseReader {
	return &MasterLeaseReader{client: client, prefix: path.Join("/", etcdPrefix, "masterleases") + "/"}
}

// Read returns all keys with the rest of their leases, ordered by address, from one linearizable
// read. A value that cannot be read is marked and does not fail the read. It blocks until etcd
// answers or ctx ends. Errors wrap ErrUnavailable.
func (r *MasterLeaseReader) Read(ctx context.Context) ([]apiservers.MasterLease, error) {
	response, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read master leases below %s: %w", r.prefix, unavailable(err))
	}
	leases := make([]apiservers.MasterLease, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		lease := apiservers.MasterLease{Key: string(kv.Key), Leased: kv.Lease != int64(clientv3.NoLease)}
		if lease.Address, err = decodeMasterLease(kv.Value); err != nil {
			lease.Unreadable = err.Error()
		}
		if lease.TTL, err = r.timeToLive(ctx, clientv3.LeaseID(kv.Lease)); err != nil {
			return nil, fmt.Errorf("read the lease of %s: %w", lease.Key, err)
		}
		lease.Alive = lease.TTL > 0
		leases = append(leases, lease)
	}
	slices.SortFunc(leases, func(a, b apiservers.MasterLease) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Key, b.Key))
	})
	return leases, nil
}

// timeToLive is 0 for a lease that etcd does not know and at least a second otherwise: in the last
// second of a lease, etcd answers 0.
func (r *MasterLeaseReader) timeToLive(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	if id == clientv3.NoLease {
		return 0, nil
	}
	response, err := r.client.TimeToLive(ctx, id)
	if err != nil {
		return 0, unavailable(err)
	}
	if response.TTL < 0 {
		return 0, nil // it expired after the key was read, or etcd never knew it
	}
	return time.Duration(max(response.TTL, 1)) * time.Second, nil
}

// storagePrefix begins every value that kube-apiserver stores as protobuf (apimachinery's
// pkg/runtime/serializer/protobuf).
var storagePrefix = []byte("k8s\x00")

// decodeMasterLease returns the first address in a value.
func decodeMasterLease(raw []byte) (netip.Addr, error) {
	endpoints, err := decodeEndpoints(raw)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(endpoints.Subsets) == 0 || len(endpoints.Subsets[0].Addresses) == 0 {
		return netip.Addr{}, errors.New("the value has no address")
	}
	address, err := netip.ParseAddr(endpoints.Subsets[0].Addresses[0].IP)
	if err != nil {
		return netip.Addr{}, errors.New("the address in the value is not an IP address")
	}
	return address.Unmap(), nil
}

func decodeEndpoints(raw []byte) (*corev1.Endpoints, error) {
	encoded, isProtobuf := bytes.CutPrefix(raw, storagePrefix)
	if !isProtobuf {
		return decodeEndpointsJSON(raw)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(encoded); err != nil {
		return nil, errors.New("the value is not in kube-apiserver's storage format")
	}
	if err := checkKind(envelope.TypeMeta); err != nil {
		return nil, err
	}
	var endpoints corev1.Endpoints
	if err := endpoints.Unmarshal(envelope.Raw); err != nil {
		return nil, errors.New("the value is not an Endpoints object")
	}
	return &endpoints, nil
}

// decodeEndpointsJSON reads the format of --storage-media-type=application/json.
func decodeEndpointsJSON(raw []byte) (*corev1.Endpoints, error) {
	var endpoints corev1.Endpoints
	if err := json.Unmarshal(raw, &endpoints); err != nil {
		return nil, errors.New("the value is neither protobuf nor JSON of kube-apiserver")
	}
	return &endpoints, checkKind(runtime.TypeMeta{APIVersion: endpoints.APIVersion, Kind: endpoints.Kind})
}

func checkKind(has runtime.TypeMeta) error {
	if has.APIVersion != "v1" || has.Kind != "Endpoints" {
		return fmt.Errorf("the value is of kind %.64q of %.64q, want Endpoints of v1", has.Kind, has.APIVersion)
	}
	return nil
}
