package kubeconn

import (
	"net/http"
	"path"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// FailFastOnThrottle returns a copy of cfg whose clients fail fast when the kube-apiserver
// throttles a write (429, or 5xx with Retry-After). client-go would sleep and retry up to ten
// times, which hides the overload and delays urgent writes. It applies to writes of resource, which
// must be namespaced. The error is an [apierrors.APIStatus] with the code and the Retry-After of
// the response, or the Status that is its body, as that of an admission webhook.
func FailFastOnThrottle(cfg *rest.Config, resource schema.GroupResource) *rest.Config {
	copied := rest.CopyConfig(cfg)
	copied.Wrap(func(next http.RoundTripper) http.RoundTripper { return &failFast{next: next, resource: resource} })
	return copied
}

// failFast is the transport of a config that fails fast.
type failFast struct {
	next     http.RoundTripper
	resource schema.GroupResource
}

// client-go finds the next transport by WrappedRoundTripper.
var _ utilnet.RoundTripperWrapper = (*failFast)(nil)

func (p *failFast) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip returns a throttled write as the error that client-go would return after its retries.
func (p *failFast) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := p.next.RoundTrip(request)
	if err != nil || !p.writes(request) {
		return response, err
	}
	seconds, throttled := retryAfter(response)
	if !throttled {
		return response, nil
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/") { // a Status
		response.Header.Del("Retry-After") // client-go repeats no write without it
		return response, nil
	}
	_ = response.Body.Close() // the code says everything
	return nil, apierrors.NewGenericServerResponse(response.StatusCode, request.Method, p.resource,
		path.Base(request.URL.Path), http.StatusText(response.StatusCode), seconds, true)
}

// writes says whether a request changes objects of the resource. The path of a create has no object
// name.
func (p *failFast) writes(request *http.Request) bool {
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

// retryAfter says whether client-go would repeat the request, and after how many seconds.
func retryAfter(response *http.Response) (seconds int, throttled bool) {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode < http.StatusInternalServerError {
		return 0, false
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	return seconds, err == nil && seconds >= 0
}
