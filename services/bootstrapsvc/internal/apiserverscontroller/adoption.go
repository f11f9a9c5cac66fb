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
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

// idlePeriod is the time between two reports of an adoption loop that adopts nothing.
const idlePeriod = 10 * time.Second

// adoption probes kube-apiservers that have a master lease and no sidecar. This replica probes them
// in place of the missing sidecar.
type adoption struct {
	Config
	Deps
	// changed is called when the set of ready servers has changed. It must not block.
	changed func()
	// readiness is written by the goroutine of run and never nil.
	readiness atomic.Pointer[map[netip.Addr]apiservers.Readiness]
}

func newAdoption(cfg Config, deps Deps, changed func()) *adoption {
	a := &adoption{Config: cfg, Deps: deps, changed: changed}
	a.readiness.Store(&map[netip.Addr]apiservers.Readiness{})
	return a
}

func (a *adoption) readinessOf(address netip.Addr) (apiservers.Readiness, bool) {
	readiness, probed := (*a.readiness.Load())[address]
	return readiness, probed
}

// run is the Run of the adoption loop. On a replica that adopts nothing, its passes do nothing.
func (a *adoption) run(ctx context.Context, report loop.Report) error {
	if a == nil {
		return loop.Every(idlePeriod, func(context.Context) error { return nil })(ctx, report)
	}
	ticker := time.NewTicker(a.ProbeInterval)
	defer ticker.Stop()
	var before []string
	for ctx.Err() == nil {
		ready, err := a.pass(ctx)
		report(err)
		if err == nil && !slices.Equal(before, ready) {
			before = ready
			a.changed()
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// pass probes the servers of all live master leases and returns the addresses of the ready servers.
func (a *adoption) pass(ctx context.Context) ([]string, error) {
	reading, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	leases, err := a.MasterLeases(reading)
	if err != nil {
		return nil, err
	}
	leases = slices.DeleteFunc(leases, func(lease apiservers.MasterLease) bool { return !lease.Alive || !lease.Address.IsValid() })
	a.probe(ctx, leases)
	var ready []string
	for address, readiness := range *a.readiness.Load() {
		if readiness.Ready {
			ready = append(ready, address.String())
		}
	}
	slices.Sort(ready)
	return ready, nil
}

// probe probes the servers of leases concurrently and replaces what is known about their readiness.
// A server that was never probed counts as ready, as its lease says, until it has failed as often
// as a ready server may. A certificate that cannot be verified here proves nothing either way.
func (a *adoption) probe(ctx context.Context, leases []apiservers.MasterLease) {
	before := *a.readiness.Load()
	after := make(map[netip.Addr]apiservers.Readiness, len(leases))
	var mu sync.Mutex // guards after
	var probes sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, a.ProbeTimeout)
	defer cancel()
	for _, lease := range leases {
		probes.Go(func() {
			result := a.ProbeOf(lease.Address)(ctx)
			result.OK = result.OK || result.Unverified
			readiness, known := before[lease.Address]
			if !known {
				readiness = apiservers.Readiness{Ready: true, LastSuccess: result.Time}
			}
			mu.Lock()
			defer mu.Unlock()
			after[lease.Address] = readiness.After(result, a.Thresholds)
		})
	}
	probes.Wait()
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the loop ends, and the probes that it interrupted prove nothing
	}
	for address, readiness := range after {
		if was, known := before[address]; !known || was.Ready != readiness.Ready {
			a.Logger.Info("probed adopted kube-apiserver", "address", address,
				"ready", readiness.Ready, "probe", readiness.Last.Detail)
		}
	}
	a.readiness.Store(&after)
}

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
// answers or ctx ends. Errors are those of [Registry].
func (r *MasterLeaseReader) Read(ctx context.Context) ([]apiservers.MasterLease, error) {
	response, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read master leases below %s: %w", r.prefix, failed(err))
	}
	leases := make([]apiservers.MasterLease, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		lease := apiservers.MasterLease{Key: string(kv.Key), Leased: kv.Lease != int64(clientv3.NoLease)}
		if lease.Address, err = decodeMasterLease(kv.Value); err != nil {
			lease.Unreadable = err.Error()
		}
		if lease.TTL, err = timeToLive(ctx, r.client, clientv3.LeaseID(kv.Lease)); err != nil {
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

// storagePrefix begins every value that kube-apiserver stores as protobuf (apimachinery's
// pkg/runtime/serializer/protobuf).
var storagePrefix = []byte("k8s\x00")

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
