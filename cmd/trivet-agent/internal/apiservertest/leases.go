package apiservertest

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/leasewrite"
)

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

// Leases is a store of Leases with the preconditions of kube-apiserver.
type Leases struct {
	mu        sync.Mutex // guards the fields below
	leases    map[string]*coordinationv1.Lease
	version   int
	uids      int
	counts    map[string]int // requests by method
	conflicts int
}

// NewLeases returns an empty store.
func NewLeases() *Leases {
	return &Leases{leases: map[string]*coordinationv1.Lease{}, counts: map[string]int{}, version: 100}
}

// Count returns how many requests of a method there were.
func (l *Leases) Count(method string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[method]
}

// Conflicts returns how many requests ended with a conflict.
func (l *Leases) Conflicts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conflicts
}

// Get returns a Lease; nil if there is none.
func (l *Leases) Get(name string) *coordinationv1.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[name].DeepCopy()
}

// Write changes a Lease, as leasesvc does.
func (l *Leases) Write(name string, change func(*coordinationv1.Lease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.leases[name].DeepCopy()
	change(lease)
	l.store(lease)
}

// Delete deletes a Lease.
func (l *Leases) Delete(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leases, name)
}

func (l *Leases) store(lease *coordinationv1.Lease) {
	l.version++
	lease.ResourceVersion = strconv.Itoa(l.version)
	if lease.UID == "" {
		l.uids++
		lease.UID = types.UID("uid-" + strconv.Itoa(l.uids))
	}
	l.leases[lease.Name] = lease
}

// ServeHTTP serves the Leases of kube-node-lease.
func (l *Leases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, found := strings.CutPrefix(r.URL.Path, leasesPath)
	if !found {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	name = strings.TrimPrefix(name, "/")
	mediaType := r.Header.Get("Content-Type")
	out := leasewrite.JSON
	if strings.HasPrefix(r.Header.Get("Accept"), leasewrite.Protobuf) {
		out = leasewrite.Protobuf
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[r.Method]++
	stored := l.leases[name]
	var written *coordinationv1.Lease
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			written, err = leasewrite.DecodeLease(mediaType, body)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
	}
	switch {
	case r.Method == http.MethodPost && l.leases[written.Name] != nil:
		fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method == http.MethodPost:
		l.store(written)
	case stored == nil:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodPut && (written.UID != stored.UID || written.ResourceVersion != stored.ResourceVersion):
		l.conflicts++
		fail(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	case r.Method == http.MethodPut:
		l.store(written)
	case r.Method == http.MethodDelete:
		delete(l.leases, name)
		written = stored
	default:
		written = stored
	}
	encoded, err := leasewrite.EncodeLease(out, written)
	if err != nil {
		panic(err) // a Lease can be encoded
	}
	w.Header().Set("Content-Type", out)
	_, _ = w.Write(encoded) // the client may have gone
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	})
	if err != nil {
		panic(err) // a Status can be encoded
	}
	w.Header().Set("Content-Type", leasewrite.JSON)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may have gone
}
