package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// keyParameter is the parameter of the URL with the key.
const keyParameter = "key"

// relay answers a browser that has the key with the answers of the gateway's page.
type relay struct {
	address string // the address of this server
	port    string
	key     string
	proxy   *httputil.ReverseProxy
	// own answers the paths below ownPath in place of the gateway; nil for none.
	own     http.Handler
	ownPath string
}

// Handler returns the page behind transport with its credentials, for the server at address, and
// the URL with a new key that a browser opens. The URL gives the rights of transport. own, unless
// it is nil, answers the paths below ownPath; it is protected as the page is.
func Handler(transport http.RoundTripper, address, ownPath string, own http.Handler) (handler http.Handler, url string) {
	r := newRelay(transport, address, rand.Text())
	r.own, r.ownPath = own, ownPath
	return r, r.url()
}

func newRelay(transport http.RoundTripper, address, key string) *relay {
	_, port, _ := net.SplitHostPort(address)
	return &relay{
		address: address, port: port, key: key,
		proxy: &httputil.ReverseProxy{
			Rewrite:       rewrite,
			Transport:     transport,
			FlushInterval: -1, // the page reads streams
			ErrorHandler:  answerFailure,
		},
	}
}

// url returns the URL of the page with the key.
func (r *relay) url() string { return "http://" + r.address + "/?" + keyParameter + "=" + r.key }

func (r *relay) cookieName() string { return "trivet-dashboard-" + r.port }

func (r *relay) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	switch given := request.URL.Query().Get(keyParameter); {
	case request.Host != r.address && request.Host != "localhost:"+r.port:
		// A website's name may resolve to 127.0.0.1, and the browser takes both for one site.
		refuse(w, http.StatusMisdirectedRequest, "this is not the name of this server; open the URL that trivet dashboard printed")
	case request.URL.Path == "/" && given != "":
		r.welcome(w, given)
	case !r.hasKey(request):
		refuse(w, http.StatusForbidden, "open the URL that trivet dashboard printed; it has the key")
	case !isOfOwnPage(request):
		refuse(w, http.StatusForbidden, "the request comes from another page")
	case r.own != nil && strings.HasPrefix(request.URL.Path, r.ownPath):
		r.own.ServeHTTP(w, request)
	default:
		r.proxy.ServeHTTP(w, request)
	}
}

// welcome gives the cookie to a browser with the key. It answers with a page, not with a redirect:
// a browser sends no strict cookie after a redirect if another page began the navigation.
func (r *relay) welcome(w http.ResponseWriter, given string) {
	if !r.isKey(given) {
		refuse(w, http.StatusForbidden, "this key is not valid: it ends with its trivet dashboard")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: r.cookieName(), Value: r.key, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintln(w, `<!doctype html><meta http-equiv=refresh content="0; url=/"><title>Trivet</title>`)
}

func (r *relay) isKey(given string) bool {
	return subtle.ConstantTimeCompare([]byte(given), []byte(r.key)) == 1
}

func (r *relay) hasKey(request *http.Request) bool {
	cookie, err := request.Cookie(r.cookieName())
	return err == nil && r.isKey(cookie.Value)
}

// isOfOwnPage reports whether a request comes from the page or from the person. A page on another
// port of this machine is of the same site, so that the browser sends its requests with the cookie.
func isOfOwnPage(request *http.Request) bool {
	if site := request.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	origin := request.Header.Get("Origin")
	return origin == "" || origin == "http://"+request.Host
}

// rewrite removes what is between the browser and this server, or would name a caller.
func rewrite(proxied *httputil.ProxyRequest) {
	for name := range proxied.Out.Header {
		switch {
		case name == "Cookie" || name == "Authorization" || name == "Origin" || name == "Referer",
			strings.HasPrefix(name, "X-Remote-"), strings.HasPrefix(name, "Sec-Fetch-"), strings.HasPrefix(name, "Grpc-Metadata-"):
			proxied.Out.Header.Del(name)
		}
	}
}

// answerFailure answers a request that did not reach the gateway.
func answerFailure(w http.ResponseWriter, request *http.Request, err error) {
	if request.Context().Err() != nil || errors.Is(err, context.Canceled) {
		return // the browser has gone
	}
	text := "the gateway is not reached: " + err.Error()
	if cause, ok := errors.AsType[*exit.Error](err); ok && cause.Try != "" {
		text += "; try: " + cause.Try
	}
	refuse(w, http.StatusBadGateway, text)
}

func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, printer.Sanitize(text), code)
}
