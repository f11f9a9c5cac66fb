// Package leasewrite decides which writes of a kubelet become heartbeats, and what the kubelet gets
// as an answer. It does no I/O and reads no clock.
//
// A write becomes a heartbeat if it renews the Lease of its node and changes nothing else. Anything
// unusual passes to kube-apiserver as it came: an unusual path, query, encoding, field or identity.
package leasewrite

import (
	"mime"
	"net/textproto"
	"net/url"
	"strings"
	"time"
)

// MaxBodyBytes limits the body of a write that can become a heartbeat.
const MaxBodyBytes = 64 << 10

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

// Path returns the path of the Lease of a node.
func Path(node string) string { return leasesPath + "/" + node }

// Request is the head of an HTTP request.
type Request struct {
	Method string
	// URI is the request target as it came, with its query.
	URI    string
	Header textproto.MIMEHeader
}

// Kind is the kind of a recognised write.
type Kind int

const (
	// Other is no write of the node's Lease, or an unusual one.
	Other Kind = iota
	// Replace is a PUT of the whole Lease.
	Replace
	// Merge is a PATCH with the fields that change.
	Merge
)

// Form is how a write is encoded, and how its answer is to be.
type Form struct {
	Kind Kind
	// In and Out are media types.
	In, Out string
	// Timeout is how long the kubelet waits for the answer; 0 if it does not say.
	Timeout time.Duration
}

// The methods of recognised writes.
const (
	methodPut   = "PUT"
	methodPatch = "PATCH"
)

// The media types of recognised writes.
const (
	JSON           = "application/json"
	Protobuf       = "application/vnd.kubernetes.protobuf"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

// Recognise returns the form of a write of the node's Lease; Kind is Other for any other request.
// It compares the request target byte by byte: kube-apiserver decodes and cleans other spellings of
// the path, and they pass.
func Recognise(node string, r Request) Form {
	path, query, hasQuery := strings.Cut(r.URI, "?")
	var timeout time.Duration
	if hasQuery {
		timeout = timeoutOf(query)
	}
	if path != Path(node) || hasQuery && timeout == 0 {
		return Form{}
	}
	if len(r.Header.Values("Content-Encoding")) > 0 || hasPrefixed(r.Header, "Impersonate-") {
		return Form{}
	}
	in, out := plainType(r.Header.Values("Content-Type")), accepted(r.Header.Values("Accept"))
	switch {
	case out == "":
	case r.Method == methodPut && (in == JSON || in == Protobuf):
		return Form{Kind: Replace, In: in, Out: out, Timeout: timeout}
	case r.Method == methodPatch && (in == mergePatch || in == strategicPatch):
		return Form{Kind: Merge, In: in, Out: out, Timeout: timeout}
	}
	return Form{}
}

// ChangesLease reports whether a request may change the node's Lease in a way that is not
// recognised. It errs towards true.
func ChangesLease(method string, path string) bool {
	return method != "GET" && method != "HEAD" && strings.Contains(path, "lease")
}

// timeoutOf returns the one parameter that client-go adds to requests of a client with a timeout; 0
// for any other query.
func timeoutOf(query string) time.Duration {
	value, found := strings.CutPrefix(query, "timeout=")
	if !found || strings.ContainsAny(value, "&;%+") {
		return 0
	}
	if decoded, err := url.QueryUnescape(value); err != nil || decoded != value {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0
	}
	return d
}

func hasPrefixed(header textproto.MIMEHeader, prefix string) bool {
	for name := range header {
		if strings.HasPrefix(textproto.CanonicalMIMEHeaderKey(name), prefix) {
			return true
		}
	}
	return false
}

// plainType returns the media type of a single header value without parameters; else nothing.
func plainType(values []string) string {
	if len(values) != 1 {
		return ""
	}
	kind, parameters, err := mime.ParseMediaType(values[0])
	if err != nil || len(parameters) > 0 {
		return ""
	}
	return kind
}

// accepted returns the encoding that kube-apiserver would choose: the first one listed. It returns
// nothing if that is neither JSON nor protobuf, or has parameters.
func accepted(values []string) string {
	if len(values) == 0 {
		return JSON
	}
	if len(values) != 1 {
		return ""
	}
	for entry := range strings.SplitSeq(values[0], ",") {
		if strings.Contains(entry, ";") {
			return ""
		}
	}
	first, _, _ := strings.Cut(values[0], ",")
	switch strings.TrimSpace(first) {
	case JSON, "*/*", "application/*":
		return JSON
	case Protobuf:
		return Protobuf
	}
	return ""
}
