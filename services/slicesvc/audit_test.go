package slicesvc_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
)

// recordedWrite is one request that passed a replica's fence.
type recordedWrite struct {
	replica string
	shard   int
	epoch   int64
	verb    string
	// service is the Service of the slice; zero for a deletion, whose request does not have it.
	service types.NamespacedName
	// version is the resourceVersion of the stored slice; 0 for a deletion, a refused write or an
	// unknown answer.
	version uint64
	// from is the resourceVersion that the write was planned from; 0 if the request does not have
	// it.
	from uint64
}

// audit records the writes of all replicas.
type audit struct {
	mu     sync.Mutex // guards writes
	writes []recordedWrite
}

// record returns a copy of config whose writes are recorded with the replica and the term.
func (a *audit) record(config *rest.Config, replica string) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/json"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &recorder{audit: a, replica: replica, next: next}
	})
	return config
}

type recorder struct {
	audit   *audit
	replica string
	next    http.RoundTripper
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if !writesSlice(req) {
		return r.next.RoundTrip(req)
	}
	made := recordedWrite{replica: r.replica, shard: -1, verb: req.Method}
	if held, ok := term.FromContext(req.Context()); ok {
		made.shard, made.epoch = held.Shard(), held.Epoch()
	}
	if req.GetBody != nil {
		if body, err := req.GetBody(); err == nil {
			made.service, made.from = sliceIn(body)
		}
	}
	req = req.Clone(req.Context())
	req.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json") // sliceIn reads JSON
	answer, err := r.next.RoundTrip(req)
	if err == nil && answer.StatusCode < http.StatusMultipleChoices && req.Method != http.MethodDelete {
		var text []byte
		text, err = io.ReadAll(answer.Body)
		answer.Body = struct {
			io.Reader
			io.Closer
		}{bytes.NewReader(text), answer.Body}
		_, made.version = sliceIn(io.NopCloser(bytes.NewReader(text)))
	}
	r.audit.mu.Lock()
	defer r.audit.mu.Unlock()
	r.audit.writes = append(r.audit.writes, made)
	return answer, err
}

// writesSlice returns whether a request writes a slice. Events need no term.
func writesSlice(req *http.Request) bool {
	return req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/endpointslices")
}

// sliceIn returns the Service and the version of the slice in a body.
func sliceIn(body io.ReadCloser) (types.NamespacedName, uint64) {
	defer body.Close()
	var slice metav1.PartialObjectMetadata
	if err := json.NewDecoder(body).Decode(&slice); err != nil {
		return types.NamespacedName{}, 0
	}
	version, _ := strconv.ParseUint(slice.ResourceVersion, 10, 64)
	return types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}, version
}

// check fails for a write outside of a term of the Service's shard by its leader. It fails for a
// write without a change, and for a stored write of an older term after one of a newer term. claims
// come from etcd.
func (a *audit) check(t *testing.T, shards int, claims map[claim]string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.writes {
		if leader := claims[claim{shard: w.shard, epoch: w.epoch}]; leader != w.replica {
			t.Errorf("%+v was made in a term of %q", w, leader)
		}
		if w.service.Name != "" && shard.Of(w.service.Namespace, w.service.Name, shards) != w.shard {
			t.Errorf("%+v belongs to shard %d", w, shard.Of(w.service.Namespace, w.service.Name, shards))
		}
		if w.version != 0 && w.version == w.from {
			t.Errorf("%+v changed nothing", w)
		}
	}
	stored := slices.DeleteFunc(slices.Clone(a.writes), func(w recordedWrite) bool { return w.version == 0 })
	slices.SortFunc(stored, func(a, b recordedWrite) int { return cmp.Compare(a.version, b.version) })
	if len(stored) == 0 {
		t.Errorf("none of %d writes was stored", len(a.writes))
	}
	newest := map[int]recordedWrite{}
	for _, w := range stored {
		if before := newest[w.shard]; before.epoch > w.epoch {
			t.Errorf("%+v was stored after %+v", w, before)
		}
		newest[w.shard] = w
	}
}

// counts returns the number of writes, of terms, and of replicas.
func (a *audit) counts() (writes, terms, replicas int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held, by := map[claim]bool{}, map[string]bool{}
	for _, w := range a.writes {
		held[claim{shard: w.shard, epoch: w.epoch}] = true
		by[w.replica] = true
	}
	return len(a.writes), len(held), len(by)
}

// claim is one term of a shard.
type claim struct {
	shard int
	epoch int64
}

// claimsSince returns the leader of each term since a revision of etcd.
func claimsSince(t *testing.T, etcd *clientv3.Client, cluster string, revision int64) map[claim]string {
	t.Helper()
	const end = "members/end-of-history"
	if _, err := etcd.Put(t.Context(), etcdconn.KeyPrefix(cluster)+end, "{}"); err != nil {
		t.Fatal(err)
	}
	claims := map[claim]string{}
	prefix := etcdconn.KeyPrefix(cluster)
	for response := range etcd.Watch(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(revision)) {
		if err := response.Err(); err != nil {
			t.Fatal(err)
		}
		for _, event := range response.Events {
			key := strings.TrimPrefix(string(event.Kv.Key), prefix)
			var number int
			switch _, err := fmt.Sscanf(key, "terms/slicesvc/%d", &number); {
			case key == end:
				return claims
			case err == nil && event.IsCreate():
				claims[claim{shard: number, epoch: event.Kv.CreateRevision}] = string(event.Kv.Value)
			}
		}
	}
	t.Fatal("the history of terms ended early")
	return nil
}
