package testkit

import (
	"errors"
	"net/http"
	"slices"
	"sync"
)

// RefusedWrites fails every request that is no read, and records it. Wrap it around the transport
// of a client that must write nothing. The zero value is valid.
type RefusedWrites struct {
	next http.RoundTripper

	mu   sync.Mutex // guards seen
	seen []string
}

// Wrap sets the transport for reads, as rest.Config.Wrap asks for it. It must be called once,
// before the first request.
func (w *RefusedWrites) Wrap(next http.RoundTripper) http.RoundTripper {
	w.next = next
	return w
}

// RoundTrip passes reads on.
func (w *RefusedWrites) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet {
		return w.next.RoundTrip(request)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, request.Method+" "+request.URL.Path)
	return nil, errors.New("the test refuses writes")
}

// All returns the method and path of every write so far.
func (w *RefusedWrites) All() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}
