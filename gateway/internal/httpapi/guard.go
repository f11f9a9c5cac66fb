package httpapi

import (
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// writeTimeout is how long one write may wait for a reader; watches live for as long as each is in time.
	writeTimeout = 10 * time.Second
	// refusedBodyTimeout bounds how long net/http looks for the end of a body that nobody wanted.
	refusedBodyTimeout = time.Second
)

// guard is what every request passes first.
type guard struct {
	// loopback is whether only this machine can connect.
	loopback bool
}

func (g guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		w = impatientWriter{ResponseWriter: w, controller: http.NewResponseController(w)}
		if code := g.refuses(r); code != 0 {
			refuse(w, r, code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuses returns the HTTP status to turn a request away with, or 0.
func (g guard) refuses(r *http.Request) int {
	switch {
	case g.loopback && !isOwnName(r.Host):
		return http.StatusMisdirectedRequest
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return http.StatusMethodNotAllowed
	case r.ContentLength != 0:
		return http.StatusRequestEntityTooLarge
	default:
		return 0
	}
}

func refuse(w http.ResponseWriter, r *http.Request, code int) {
	if code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", "GET, HEAD")
	}
	// The body, if any, is neither read nor waited for.
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBodyTimeout))
	writeError(w, r, code)
}

// isOwnName says whether host, as a request names it, can only mean the machine it arrived at. Another name may be a foreign
// site's that resolves to 127.0.0.1, whose scripts the browser would then let read our answers.
func isOwnName(host string) bool {
	name := host
	if without, _, err := net.SplitHostPort(host); err == nil {
		name = without
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil
}

// setSecurityHeaders lets the page load from here only, and nobody embed it or guess at its types. There is no CORS header:
// scripts of other origins read nothing.
func setSecurityHeaders(header http.Header) {
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

// impatientWriter gives each write its own deadline, so that a reader who stands still is let go while one who reads may
// watch for ever.
type impatientWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
}

func (w impatientWriter) WriteHeader(code int) {
	w.extend()
	w.ResponseWriter.WriteHeader(code)
}

func (w impatientWriter) Write(data []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach the connection.
func (w impatientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w impatientWriter) extend() {
	_ = w.controller.SetWriteDeadline(time.Now().Add(writeTimeout)) // unsupported only by writers without a connection
}
