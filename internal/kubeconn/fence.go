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

// Fence returns a copy of cfg whose clients write only under a held term: a
// mutating request, that is any but GET, HEAD and OPTIONS, is sent only if its
// context carries a term that has not ended, and it is cancelled when the term
// ends. So the context to write with is the one a [term.Body] was given, or
// one derived from it.
//
// A refused request never leaves the process; its error wraps [term.ErrNone]
// or [term.ErrEnded] and names verb and path. The same error for a request
// that had left means that its outcome is unknown. A request whose own context
// has ended does not get this far: client-go answers it with that context's
// error.
//
// Exempt are requests that decide nothing for the cluster: Events, and the
// reviews by which authentication and authorization are asked.
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
	prefix string // of every path, when the apiserver stands behind a proxy
}

// By WrappedRoundTripper client-go finds the transport below, to close its
// idle connections and to read its TLS config.
var _ utilnet.RoundTripperWrapper = (*fence)(nil)

func (f *fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip sends req if it only reads, is exempt, or has a live term.
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if !mutates(req.Method) || exempt(req.Method, f.prefix, req.URL.EscapedPath()) {
		return f.next.RoundTrip(req)
	}
	t, err := liveTerm(req.Context())
	if err != nil {
		if req.Body != nil {
			err = errors.Join(err, req.Body.Close()) // a RoundTripper closes the body, whatever happens
		}
		return nil, fmt.Errorf("refused %s %s: %w", req.Method, req.URL.Path, err)
	}
	return f.sendUnder(t, req)
}

// sendUnder sends req and cuts it off when t ends. The caller's context may
// outlive the term, for example by context.WithoutCancel, so it is not enough.
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
	// The answer is still being read under ctx: it ends with its body.
	resp.Body = &body{ReadCloser: resp.Body, release: release}
	return resp, nil
}

// liveTerm returns the term of ctx if it may be acted under.
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

// body is an answer's body that releases its request's context when closed.
type body struct {
	io.ReadCloser
	release func()
}

func (b *body) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// mutates reports whether a request of this method may change something. A
// method it does not know may.
func mutates(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions: // "" is net/http's GET
		return false
	default:
		return true
	}
}

// exempt reports whether a mutating request needs no term. The path is matched
// whole, so a resource that merely ends alike cannot pass for another, and
// neither can a name with "..", "/" or an escaped "/" in it: no legal name has
// them, and the apiserver would read another path than we do.
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
	case http.MethodPut, http.MethodPatch: // a recorder counts repetitions in the Event it sent first
		return []string{
			"/api/v1/namespaces/*/events/*",
			"/apis/events.k8s.io/*/namespaces/*/events/*",
		}
	default:
		return nil
	}
}

// pathPrefix is what the paths of cfg's server begin with: empty, or where a
// proxy in front of it keeps it, such as "/k8s/clusters/one".
func pathPrefix(cfg *rest.Config) string {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return "" // no client can be made from such a config
	}
	return strings.TrimSuffix(base.EscapedPath(), "/")
}
