package kubeconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/term"
)

// Fence returns a copy of cfg whose clients write only under a held term. A mutating request (any
// method except GET, HEAD and OPTIONS) is sent only if its context carries a term that has not
// ended, and is cancelled when the term ends. Write with the context of a [term.Body] or a context
// derived from it.
//
// The write must also be safe if it arrives late: an update or a patch has the resourceVersion of
// its object, and a delete has the UID as a precondition. A create needs neither. A post to a
// subresource, such as an eviction, is never sent.
//
// A refused request does not leave the process; its error wraps [term.ErrNone], [term.ErrEnded] or
// [ErrUnguarded] and names verb and path. For a request in flight, an error that wraps
// [term.ErrEnded] means that its outcome is unknown. A request whose own context has ended fails in
// client-go before.
//
// Events and reviews of authentication and authorization need no term.
func Fence(cfg *rest.Config) *rest.Config {
	fenced := rest.CopyConfig(cfg)
	prefix := pathPrefix(cfg)
	fenced.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &fence{next: next, prefix: prefix}
	})
	return fenced
}

// fence is the transport of a fenced config.
type fence struct {
	next   http.RoundTripper
	prefix string // of every path, if the apiserver is behind a proxy
}

// client-go finds the next transport by WrappedRoundTripper, to close its idle connections and to
// read its TLS config.
var _ utilnet.RoundTripperWrapper = (*fence)(nil)

func (f *fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip sends req if it only reads, is exempt, or has a term that has not ended.
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if !mutates(req.Method) || exempt(req.Method, f.prefix, req.URL.EscapedPath()) {
		return f.next.RoundTrip(req)
	}
	t, err := liveTerm(req.Context())
	if err == nil && req.Body != nil {
		req = req.Clone(req.Context()) // a RoundTripper must not change the request of its caller
	}
	if err == nil {
		err = checkGuard(req, f.prefix)
	}
	if err != nil {
		if req.Body != nil {
			err = errors.Join(err, req.Body.Close()) // a RoundTripper must close the body
		}
		return nil, fmt.Errorf("refused %s %s: %w", req.Method, req.URL.Path, err)
	}
	return f.sendUnder(t, req)
}

// sendUnder sends req and cancels it when t ends. The context of req may outlive the term, for
// example after context.WithoutCancel.
func (f *fence) sendUnder(t *term.Term, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(t.Context(), func() { cancel(term.ErrEnded) })
	release := func() {
		stop()
		cancel(nil)
	}
	resp, err := f.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		release()
		if ended := t.Check(); ended != nil {
			return nil, fmt.Errorf("cut off %s %s, its outcome is unknown: %w: %w", req.Method, req.URL.Path, ended, err)
		}
		return nil, err
	}
	// ctx must last until the response body is closed.
	resp.Body = &body{ReadCloser: resp.Body, release: release}
	return resp, nil
}

// liveTerm returns the term of ctx if it has not ended.
func liveTerm(ctx context.Context) (*term.Term, error) {
	t, ok := term.FromContext(ctx)
	if !ok {
		return nil, term.ErrNone
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	return t, nil
}

// body is a response body that releases its request's context when it is closed.
type body struct {
	io.ReadCloser
	release func()
}

func (b *body) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// mutates reports whether a request of this method may change an object. An unknown method may.
func mutates(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions: // "" is net/http's GET
		return false
	default:
		return true
	}
}

// exempt reports whether a mutating request needs no term. It matches the whole path, so a resource
// with the same suffix does not match. It refuses names with "..", "/" or an escaped "/": no valid
// name contains them, and the apiserver would read another path.
func exempt(method, prefix, escapedPath string) bool {
	resource, ok := strings.CutPrefix(escapedPath, prefix)
	if !ok || path.Clean(resource) != resource || strings.Contains(resource, "%") {
		return false
	}
	return slices.ContainsFunc(exemptPatterns(method), func(pattern string) bool {
		matched, err := path.Match(pattern, resource)
		return matched && err == nil
	})
}

// exemptPatterns are the exempt paths, in the form of path.Match.
func exemptPatterns(method string) []string {
	switch method {
	case http.MethodPost:
		return []string{
			"/api/v1/namespaces/*/events",
			"/apis/events.k8s.io/*/namespaces/*/events",
			"/apis/authentication.k8s.io/*/selfsubjectreviews",
			"/apis/authentication.k8s.io/*/tokenreviews",
			"/apis/authorization.k8s.io/*/namespaces/*/localsubjectaccessreviews",
			"/apis/authorization.k8s.io/*/selfsubjectaccessreviews",
			"/apis/authorization.k8s.io/*/selfsubjectrulesreviews",
			"/apis/authorization.k8s.io/*/subjectaccessreviews",
		}
	case http.MethodPut, http.MethodPatch: // a recorder counts repetitions in the first Event
		return []string{
			"/api/v1/namespaces/*/events/*",
			"/apis/events.k8s.io/*/namespaces/*/events/*",
		}
	default:
		return nil
	}
}

// pathPrefix returns the path of cfg's server: empty, or the path behind a proxy, such as
// "/k8s/clusters/one".
func pathPrefix(cfg *rest.Config) string {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return "" // no client can use such a config
	}
	return strings.TrimSuffix(base.EscapedPath(), "/")
}
