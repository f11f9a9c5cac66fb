package kubeconn

import (
	"net/http"
	"path"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// Prompt returns a copy of cfg whose clients tell at once when the kube-apiserver asks to write an object of that resource,
// which has namespaces, later. client-go would sleep and try again by itself, ten times: nobody would learn that there are too many writes, and
// whoever became urgent meanwhile would wait for those who sleep. Other requests are made as ever. The error is an
// [apierrors.APIStatus] with the answer's code and the pause that was asked for.
func Prompt(cfg *rest.Config, resource schema.GroupResource) *rest.Config {
	copied := rest.CopyConfig(cfg)
	copied.Wrap(func(next http.RoundTripper) http.RoundTripper { return &prompt{next: next, resource: resource} })
	return copied
}

// prompt is the transport of a prompt config.
type prompt struct {
	next     http.RoundTripper
	resource schema.GroupResource
}

// By WrappedRoundTripper client-go finds the transport below.
var _ utilnet.RoundTripperWrapper = (*prompt)(nil)

func (p *prompt) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip answers with the error that the client would return in the end.
func (p *prompt) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := p.next.RoundTrip(request)
	if err != nil || !p.writes(request) {
		return response, err
	}
	seconds, asked := postponed(response)
	if !asked {
		return response, nil
	}
	_ = response.Body.Close() // what it says is said by its code
	return nil, apierrors.NewGenericServerResponse(response.StatusCode, request.Method, p.resource,
		path.Base(request.URL.Path), http.StatusText(response.StatusCode), seconds, true)
}

// writes tells whether a request is one that changes objects of the resource. What is created is named in the body alone.
func (p *prompt) writes(request *http.Request) bool {
	if !mutates(request.Method) {
		return false
	}
	collection := request.URL.Path
	if request.Method != http.MethodPost {
		collection = path.Dir(collection)
	}
	namespace, resource := path.Split(collection)
	return resource == p.resource.Resource && path.Base(path.Dir(path.Clean(namespace))) == "namespaces"
}

// postponed tells whether the same request shall be made again, as client-go understands it, and after how many seconds.
func postponed(response *http.Response) (seconds int, asked bool) {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode < http.StatusInternalServerError {
		return 0, false
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	return seconds, err == nil && seconds >= 0
}
