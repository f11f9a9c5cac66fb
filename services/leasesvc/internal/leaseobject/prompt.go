package leaseobject

import (
	"net/http"
	"path"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// Prompt returns a copy of cfg whose clients tell at once when the kube-apiserver asks to write a Lease later. client-go
// would sleep and try again by itself, ten times: nobody would learn that there are too many writes, and whoever became urgent
// meanwhile would wait for those who sleep. Other requests are made as ever.
func Prompt(cfg *rest.Config) *rest.Config {
	copied := rest.CopyConfig(cfg)
	copied.Wrap(func(next http.RoundTripper) http.RoundTripper { return &prompt{next: next} })
	return copied
}

type prompt struct{ next http.RoundTripper }

// By WrappedRoundTripper client-go finds the transport below.
var _ utilnet.RoundTripperWrapper = (*prompt)(nil)

func (p *prompt) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip answers with the error that the client would return in the end.
func (p *prompt) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := p.next.RoundTrip(request)
	if err != nil || !writesLease(request) {
		return response, err
	}
	seconds, asked := postponed(response)
	if !asked {
		return response, nil
	}
	_ = response.Body.Close() // what it says is said by its code
	return nil, apierrors.NewGenericServerResponse(response.StatusCode, request.Method, coordinationv1.Resource("leases"),
		path.Base(request.URL.Path), http.StatusText(response.StatusCode), seconds, true)
}

// writesLease tells whether a request is one that changes a Lease. What is created is named in the body alone.
func writesLease(request *http.Request) bool {
	if request.Method == http.MethodGet {
		return false
	}
	parent, last := path.Split(request.URL.Path)
	return last == "leases" || path.Base(parent) == "leases"
}

// postponed tells whether the same request shall be made again, as client-go understands it, and after how many seconds.
func postponed(response *http.Response) (seconds int, asked bool) {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode < http.StatusInternalServerError {
		return 0, false
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	return seconds, err == nil && seconds >= 0
}
