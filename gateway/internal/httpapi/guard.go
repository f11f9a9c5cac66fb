package httpapi

import (
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/httpaccess"
)

const (
	// writeTimeout bounds one write. A watch lasts for as long as each write is in time.
	writeTimeout = 10 * time.Second
	// rejectedBodyTimeout bounds how long net/http waits for the end of a rejected body.
	rejectedBodyTimeout = time.Second
	// bodyTimeout bounds how long a client may take to send a body.
	bodyTimeout = 10 * time.Second
)

// guard checks each request before next: its host, its caller, and its form. health serves the
// paths that need no caller.
type guard struct {
	health, next http.Handler
	access       *httpaccess.Access
	callers      *handoff
	origins      *http.CrossOriginProtection
	// ownNamesOnly refuses names of other hosts. It is for plain HTTP on loopback: with TLS, the
	// certificate does not have such a name.
	ownNamesOnly bool
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	w = deadlineWriter{ResponseWriter: w, controller: http.NewResponseController(w)}
	if g.ownNamesOnly && !httpaccess.IsOwnName(r.Host) {
		reject(w, r, http.StatusMisdirectedRequest)
		return
	}
	isHealth := r.URL.Path == livePath || r.URL.Path == readyPath
	if r.ContentLength != 0 && (isHealth || r.Method != http.MethodPost) {
		dropBody(w) // net/http waits for the end of a body before it answers, also one of a stranger
	}
	if isHealth {
		g.health.ServeHTTP(w, r)
		return
	}
	known, err := g.access.Known(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
	if code := g.checkRequest(known); code != 0 {
		reject(w, known, code)
		return
	}
	if r.Method == http.MethodPost {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // fails only without a connection
	}
	held, release := g.callers.hold(known)
	defer release()
	g.next.ServeHTTP(w, held)
}

// checkRequest returns the HTTP status with which to reject a request, or 0.
func (g *guard) checkRequest(r *http.Request) int {
	switch {
	// A browser presents the client certificate of its user to every page that asks for it.
	case g.origins.Check(r) != nil:
		return http.StatusForbidden
	case r.Method == http.MethodPost:
		return checkBody(r)
	case r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead):
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
	default:
		return 0
	}
}

func reject(w http.ResponseWriter, r *http.Request, code int) {
	dropBody(w)
	writeError(w, r, code)
}

// dropBody closes the connection after the answer. The server does not wait for the body.
func dropBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(rejectedBodyTimeout))
}

// refuse answers a caller that is not known, or has not the right. A browser that loads the page
// gets text.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		dropBody(w)
	}
	code := httpaccess.Refuse(w.Header(), err)
	if r.URL.Path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Error(w, status.Convert(err).Message(), code)
		return
	}
	write(w, r, code, err)
}

// writeRefusal answers a call that is refused before its body is read.
func writeRefusal(w http.ResponseWriter, r *http.Request, err error) {
	if r.Method != http.MethodGet {
		dropBody(w)
	}
	if status.Code(err) == codes.Unauthenticated {
		refuse(w, r, err)
		return
	}
	write(w, r, runtime.HTTPStatusFromCode(status.Code(err)), err)
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

// markStream keeps a proxy from holding lines back, and from changing them: nginx would collect and
// compress a watch, which has no end.
func markStream(header http.Header) {
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no")
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
