package faultproxy

import (
	"net/http"
	"slices"
	"strings"
)

// Request is what a rule selects by: a request to a kube-apiserver.
type Request struct {
	// Verb is that of Kubernetes authorization: get, list, watch, create, update, patch, delete or
	// deletecollection; the HTTP method in lower case for a path without a resource.
	Verb string
	// Group is empty for the core group.
	Group                                  string
	Resource, Subresource, Namespace, Name string
	Path, UserAgent                        string
}

// Match selects requests.
type Match func(Request) bool

// Resource selects the requests to a resource with one of the verbs; with each verb, if none is
// given. resource is a plural, without its group.
func Resource(resource string, verbs ...string) Match {
	return func(r Request) bool {
		return r.Resource == resource && (len(verbs) == 0 || slices.Contains(verbs, r.Verb))
	}
}

// parse reads the path of a request as kube-apiserver does:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris
func parse(r *http.Request) Request {
	out := Request{Path: r.URL.Path, UserAgent: r.UserAgent(), Verb: strings.ToLower(r.Method)}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		out.Group, parts = parts[1], parts[3:]
	default:
		return out
	}
	if len(parts) >= 3 && parts[0] == "namespaces" && !slices.Contains([]string{"status", "finalize"}, parts[2]) {
		out.Namespace, parts = parts[1], parts[2:]
	}
	out.Resource = parts[0]
	if len(parts) > 1 {
		out.Name = parts[1]
	}
	if len(parts) > 2 {
		out.Subresource = parts[2]
	}
	out.Verb = verb(r, out.Name != "")
	return out
}

func verb(r *http.Request, named bool) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if !named {
			return "deletecollection"
		}
		return "delete"
	}
	if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		return "watch"
	}
	if !named {
		return "list"
	}
	return "get"
}
