package apiserverscontroller

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// endpointsAt is the value of a master lease.
func endpointsAt(address string) *corev1.Endpoints {
	return &corev1.Endpoints{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{Generation: 7},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address}}}},
	}
}

// stored is an object in kube-apiserver's storage encoding.
func stored(t testing.TB, object *corev1.Endpoints) string {
	t.Helper()
	meta := runtime.TypeMeta{APIVersion: object.APIVersion, Kind: object.Kind}
	bare := object.DeepCopy()
	bare.TypeMeta = metav1.TypeMeta{}
	raw, err := bare.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: meta, Raw: raw}
	encoded, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return "k8s\x00" + string(encoded)
}

func TestDecodeMasterLease(t *testing.T) {
	t.Parallel()
	asJSON, err := json.Marshal(endpointsAt("10.1.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	empty, another := endpointsAt(""), endpointsAt("10.1.0.1")
	empty.Subsets = nil
	another.Kind = "Lease"
	whole := stored(t, endpointsAt("10.1.0.1"))
	cases := map[string]struct {
		raw  string
		want string
		err  string
	}{
		"protobuf":             {raw: whole, want: "10.1.0.1"},
		"JSON":                 {raw: string(asJSON), want: "10.1.0.1"},
		"IPv6":                 {raw: stored(t, endpointsAt("fd00::1")), want: "fd00::1"},
		"IPv4 written as IPv6": {raw: stored(t, endpointsAt("::ffff:10.1.0.1")), want: "10.1.0.1"},
		"no address":           {raw: stored(t, empty), err: "has no address"},
		"a name":               {raw: stored(t, endpointsAt("host")), err: "not an IP address"},
		"another kind":         {raw: stored(t, another), err: `kind "Lease"`},
		"truncated":            {raw: whole[:len(whole)-3], err: "not in kube-apiserver"},
		"nothing":              {err: "neither protobuf nor JSON"},
		"the magic alone":      {raw: "k8s\x00", err: `kind ""`},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := decodeMasterLease([]byte(test.raw))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error = %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil || got != netip.MustParseAddr(test.want) {
				t.Errorf("address = %s, %v, want %s", got, err, test.want)
			}
		})
	}
}

func FuzzDecodeMasterLease(f *testing.F) {
	f.Add([]byte(stored(f, endpointsAt("10.1.0.1"))))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Endpoints","subsets":[{"addresses":[{"ip":"fd00::1"}]}]}`))
	f.Add([]byte("k8s\x00\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		address, err := decodeMasterLease(raw)
		if (err == nil) != address.IsValid() || address.Is4In6() {
			t.Errorf("address = %s, error = %v", address, err)
		}
	})
}

func TestMasterLeaseReader_ReturnsTheStateOfEachLease(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	prefix := "/" + t.Name()
	put := func(name, value string, lease clientv3.LeaseID) {
		t.Helper()
		if _, err := client.Put(t.Context(), prefix+"/masterleases/"+name, value, clientv3.WithLease(lease)); err != nil {
			t.Fatal(err)
		}
	}
	granted, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	put("10.1.0.10", stored(t, endpointsAt("10.1.0.10")), granted.ID)
	put("10.1.0.9", stored(t, endpointsAt("10.1.0.9")), clientv3.NoLease)
	put("broken", "k8s\x00 from the future", granted.ID)

	got, err := NewMasterLeaseReader(client, strings.TrimPrefix(prefix, "/")).Read(t.Context()) // kube-apiserver takes the prefix without its slash, too
	if err != nil {
		t.Fatal(err)
	}
	want := []apiservers.MasterLease{
		{Key: prefix + "/masterleases/broken", Leased: true, Alive: true, Unreadable: "the value is not in kube-apiserver's storage format"},
		{Key: prefix + "/masterleases/10.1.0.9", Address: netip.MustParseAddr("10.1.0.9")},
		{Key: prefix + "/masterleases/10.1.0.10", Address: netip.MustParseAddr("10.1.0.10"), Leased: true, Alive: true},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.IgnoreFields(apiservers.MasterLease{}, "TTL")); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	for _, key := range got {
		if (key.TTL > 0) != key.Alive {
			t.Errorf("TTL of %s = %s, alive = %t", key.Key, key.TTL, key.Alive)
		}
	}
}

// deadLease is an etcd that has a key and does not know its lease.
type deadLease struct{ *clientv3.Client }

func (deadLease) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{TTL: -1}, nil
}

func TestMasterLeaseReader_LeaseThatEtcdDoesNotKnowIsDead(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	granted, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	prefix := "/" + t.Name()
	value := stored(t, endpointsAt("10.1.0.1"))
	if _, err := client.Put(t.Context(), prefix+"/masterleases/10.1.0.1", value, clientv3.WithLease(granted.ID)); err != nil {
		t.Fatal(err)
	}
	got, err := NewMasterLeaseReader(deadLease{client}, prefix).Read(t.Context())
	if err != nil || len(got) != 1 || !got[0].Leased || got[0].Alive {
		t.Errorf("keys = %+v, %v, want one whose lease is dead", got, err)
	}
}

func TestMasterLeaseReader_EtcdThatDoesNotAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewMasterLeaseReader(testkit.Etcd(t), "/registry").Read(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error = %v, want %v", err, ErrUnavailable)
	}
}
