package testkit

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// testLabel of a Node has as its value the namespace of the test that the Node belongs to.
const testLabel = "trivet.test/namespace"

// NodeLabels returns the labels of the Nodes that belong to the test of a namespace.
func NodeLabels(namespace string) map[string]string { return map[string]string{testLabel: namespace} }

// ObjectsOf returns a copy of a configuration whose client finds only objects of the namespace, and
// only Nodes with NodeLabels, when it lists or watches all namespaces. A service that handles a
// whole cluster leaves the objects of other tests alone then, so that tests share one control plane
// at the same time.
func ObjectsOf(config *rest.Config, namespace string) *rest.Config {
	selected := rest.CopyConfig(config)
	selected.Wrap(func(next http.RoundTripper) http.RoundTripper { return &selecting{next: next, namespace: namespace} })
	return selected
}

// selecting is the transport of a configuration of ObjectsOf.
type selecting struct {
	next      http.RoundTripper
	namespace string
}

// WrappedRoundTripper returns the next transport, whose idle connections client-go closes.
func (s *selecting) WrappedRoundTripper() http.RoundTripper { return s.next }

func (s *selecting) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return s.next.RoundTrip(request)
	}
	switch request.URL.Path {
	case "/api/v1/nodes":
		request = narrowed(request, "labelSelector", testLabel+"="+s.namespace)
	case "/api/v1/endpoints", "/api/v1/pods", "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices":
		request = narrowed(request, "fieldSelector", "metadata.namespace="+s.namespace)
	}
	return s.next.RoundTrip(request)
}

// narrowed returns a copy of a request with another term of a selector.
func narrowed(request *http.Request, selector, term string) *http.Request {
	request = request.Clone(request.Context())
	query := request.URL.Query()
	if given := query.Get(selector); given != "" {
		term = given + "," + term
	}
	query.Set(selector, term)
	request.URL.RawQuery = query.Encode()
	return request
}
