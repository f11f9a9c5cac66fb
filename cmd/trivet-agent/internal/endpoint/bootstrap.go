package endpoint

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// maxBootstraps limits the bootstrap requests in progress: creation, list and watch of one request,
// and a few retries.
const maxBootstraps = 16

const requestsPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

var (
	bootstrapToken = regexp.MustCompile(`^Bearer [a-z0-9]{6}\.[a-z0-9]{16}$`)
	requestName    = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,253}$`)
)

// serveStranger answers a caller that is not the node. Requests of a TLS bootstrap pass without any
// certificate while the files of the node have none.
func (e *Endpoint) serveStranger(w http.ResponseWriter, r *http.Request, reason string) {
	if !isBootstrap(r) || e.pool.StoresCertificate() {
		// The connection has no use.
		w.Header().Set("Connection", "close")
		e.metrics.refused.Inc()
		writeStatus(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized: "+reason)
		return
	}
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		writeStatus(w, http.StatusTooManyRequests, "TooManyRequests", "too many bootstrap requests")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
	e.direct.ServeHTTP(w, r)
}

// isBootstrap reports whether a request is one of a kubelet without a certificate. A kubelet v1.37
// asks whether kube-apiserver is healthy, creates a CertificateSigningRequest, reads it if it
// exists already, and lists and watches it by its name until it has a certificate.
func isBootstrap(r *http.Request) bool {
	authorization := r.Header.Values("Authorization")
	if len(authorization) != 1 || !bootstrapToken.MatchString(authorization[0]) || r.Header.Get("Upgrade") != "" {
		return false
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return false
		}
	}
	path, _, _ := strings.Cut(r.RequestURI, "?")
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return false
	}
	switch {
	case r.Method == http.MethodPost:
		return path == requestsPath
	case r.Method != http.MethodGet:
		return false
	case path == "/healthz":
		return true
	case path == requestsPath:
		name, found := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
		return found && len(query["fieldSelector"]) == 1 && requestName.MatchString(name)
	}
	name, found := strings.CutPrefix(path, requestsPath+"/")
	return found && requestName.MatchString(name)
}
