package kubeconn

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
)

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
