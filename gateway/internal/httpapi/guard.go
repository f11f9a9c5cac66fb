package httpapi

import (
	"mime"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// writeTimeout bounds one write. A watch lasts for as long as each write is in time.
	writeTimeout = 10 * time.Second
	// rejectedBodyTimeout bounds how long net/http waits for the end of a rejected body.
	rejectedBodyTimeout = time.Second
	// bodyTimeout bounds how long a client may take to send a body, maxBody its length.
	bodyTimeout = 10 * time.Second
	maxBody     = 1 << 20
)

// guard checks each request first. loopback is whether the server listens on loopback.
func guard(next http.Handler, loopback bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		w = deadlineWriter{ResponseWriter: w, controller: http.NewResponseController(w)}
		if code := checkRequest(r, loopback); code != 0 {
			reject(w, r, code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkRequest returns the HTTP status with which to reject a request, or 0.
func checkRequest(r *http.Request, loopback bool) int {
	switch {
	case loopback && !isOwnName(r.Host):
		return http.StatusMisdirectedRequest
	case r.Method == http.MethodPost:
		return checkBody(r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return http.StatusMethodNotAllowed
	case r.ContentLength != 0:
		return http.StatusRequestEntityTooLarge
	default:
		return 0
	}
}

// checkBody takes JSON only. A page of another origin cannot send it without a permission that this
// server does not give: a form has one of three other types.
func checkBody(r *http.Request) int {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err != nil || mediaType != "application/json":
		return http.StatusUnsupportedMediaType
	case r.ContentLength > maxBody:
		return http.StatusRequestEntityTooLarge
	default:
		return 0
	}
}

func reject(w http.ResponseWriter, r *http.Request, code int) {
	if code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", "GET, HEAD, POST")
	}
	// The server does not wait for the body.
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(rejectedBodyTimeout))
	writeError(w, r, code)
}

// isOwnName reports whether a host can mean only the machine that it was sent to. Another name may
// be a website's that resolves to 127.0.0.1: the browser would let its scripts read the answers.
func isOwnName(host string) bool {
	name := host
	if without, _, err := net.SplitHostPort(host); err == nil {
		name = without
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil
}

// setSecurityHeaders lets the page load only from this server, and forbids embedding and type
// sniffing. Without a CORS header scripts of other origins read nothing.
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

// deadlineWriter gives each write its own deadline: it ends a client that does not read, and lets
// others watch for any time.
type deadlineWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
}

func (w deadlineWriter) WriteHeader(code int) {
	w.extend()
	w.ResponseWriter.WriteHeader(code)
}

func (w deadlineWriter) Write(data []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach the connection.
func (w deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w deadlineWriter) extend() {
	_ = w.controller.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only without a connection
}
