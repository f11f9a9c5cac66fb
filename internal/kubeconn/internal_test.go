package kubeconn

import (
	"fmt"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

func TestExempt(t *testing.T) {
	t.Parallel()
	const post, put, patch, del = http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	for _, test := range []struct {
		method, path string
		want         bool
	}{
		{post, "/api/v1/namespaces/ns/events", true},
		{put, "/api/v1/namespaces/ns/events/e", true},
		{patch, "/apis/events.k8s.io/v1/namespaces/ns/events/e", true},
		{post, "/apis/authentication.k8s.io/v1/tokenreviews", true},
		{post, "/apis/authentication.k8s.io/v1/selfsubjectreviews", true},
		{post, "/apis/authorization.k8s.io/v1/subjectaccessreviews", true},
		{post, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", true},
		{post, "/apis/authorization.k8s.io/v1/namespaces/ns/localsubjectaccessreviews", true},

		{del, "/api/v1/namespaces/ns/events/e", false},
		{del, "/api/v1/namespaces/ns/events", false},
		{post, "/api/v1/namespaces/events", false},
		{put, "/api/v1/namespaces/events", false},
		{put, "/api/v1/namespaces/ns/pods/events", false},
		{post, "/api/v1/namespaces/ns/pods/events", false},
		{patch, "/api/v1/namespaces/ns/events/e/status", false},
		{post, "/api/v1/namespaces/ns/serviceaccounts/sa/token", false},
		{post, "/apis/example.com/v1/namespaces/ns/events", false},
		{post, "/apis/example.com/v1/tokenreviews", false},
		{put, "/apis/authentication.k8s.io/v1/tokenreviews", false},
		{post, "/elsewhere/api/v1/namespaces/ns/events", false},
		{put, "/api/v1/namespaces/ns/events/..%2Fpods%2Fp", false},
		{post, "/api/v1/namespaces/ns%2Fpods%2Fp/events", false},
		{put, "/api/v1/namespaces/ns/events/..", false},
		{put, "/api/v1/namespaces/../events/kube-system", false},
		{post, "/api/v1/namespaces/ns/events/", false},
		{post, "//api/v1/namespaces/ns/events", false},
		{post, "", false},
	} {
		if got := exempt(test.method, "", test.path); got != test.want {
			t.Errorf("exempt(%s %s) = %t", test.method, test.path, got)
		}
	}
}

func TestExempt_BehindAProxy(t *testing.T) {
	t.Parallel()
	prefix := pathPrefix(&rest.Config{Host: "https://hub.example.com/k8s/clusters/one/"})
	if want := "/k8s/clusters/one"; prefix != want {
		t.Fatalf("prefix %q, want %q", prefix, want)
	}
	if !exempt(http.MethodPost, prefix, "/k8s/clusters/one/api/v1/namespaces/ns/events") {
		t.Error("an Event behind the proxy is refused")
	}
	if exempt(http.MethodPost, prefix, "/api/v1/namespaces/ns/events") {
		t.Error("a path that is not behind the proxy is exempt")
	}
	if got := pathPrefix(&rest.Config{Host: "127.0.0.1:6443"}); got != "" {
		t.Errorf("a plain host has prefix %q", got)
	}
}

func TestMutates(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		"": false, "GET": false, "HEAD": false, "OPTIONS": false,
		"POST": true, "PUT": true, "PATCH": true, "DELETE": true, "CONNECT": true, "MERGE": true, "get": true,
	} {
		if got := mutates(method); got != want {
			t.Errorf("mutates(%q) = %t", method, got)
		}
	}
}

func TestWarnings_EachTextIsNewOnce(t *testing.T) {
	t.Parallel()
	w := newWarnings()
	if !w.isNew("v1 Endpoints is deprecated") || w.isNew("v1 Endpoints is deprecated") {
		t.Error("a text is not new exactly once")
	}
	for i := range 10 * warningsLimit {
		if !w.isNew(fmt.Sprintf("pod %d is odd", i)) {
			t.Fatalf("text %d was seen before", i)
		}
	}
	if len(w.seen) > warningsLimit {
		t.Errorf("%d texts are remembered, want at most %d", len(w.seen), warningsLimit)
	}
}

func TestCreates(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/api/v1/namespaces":                                        true,
		"/api/v1/nodes":                                             true,
		"/api/v1/namespaces/ns/pods":                                true,
		"/apis/networking.k8s.io/v1/ipaddresses":                    true,
		"/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices":    true,
		"/api/v1/namespaces/ns/pods/p/eviction":                     false,
		"/api/v1/namespaces/ns/pods/p/binding":                      false,
		"/api/v1/namespaces/ns/serviceaccounts/default/token":       false,
		"/api/v1/nodes/n/proxy":                                     false,
		"/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/a/": false,
		"/api/v1":  false,
		"/metrics": false,
		"":         false,
	} {
		if got := creates(path); got != want {
			t.Errorf("creates(%q) = %t, want %t", path, got, want)
		}
	}
}
