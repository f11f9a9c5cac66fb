package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

const (
	// keyHeader has the key. The page's assets/hub.js has the same name.
	keyHeader = "Trivet-Dashboard-Key"
	// keyFile is the file of the page that reads the key.
	keyFile = "/assets/key.js"
)

// relay answers a page that has the key with the answers of the gateway.
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
// it is nil, answers the paths below ownPath; it is protected as the API is.
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
func (r *relay) url() string { return "http://" + r.address + "/#key=" + r.key }

func (r *relay) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	switch {
	case request.Host != r.address && request.Host != "localhost:"+r.port:
		// A website's name may resolve to 127.0.0.1, and the browser takes both for one site.
		refuse(w, http.StatusMisdirectedRequest, "this is not the name of this server; open the URL that trivet dashboard printed")
	case isFile(request):
		r.proxy.ServeHTTP(w, request)
	case !r.hasKey(request):
		refuse(w, http.StatusForbidden, "open the URL that trivet dashboard printed; it has the key, which ends with its trivet dashboard")
	case !isOfOwnPage(request):
		refuse(w, http.StatusForbidden, "the request comes from another page")
	case r.own != nil && strings.HasPrefix(request.URL.Path, r.ownPath):
		setHeaders(w.Header())
		r.own.ServeHTTP(w, request)
	default:
		r.proxy.ServeHTTP(w, request)
	}
}

// isFile reports whether a request is for a file of the page. A browser loads these before the page
// can send the key, and they are the same for all persons.
func isFile(request *http.Request) bool {
	if request.Method != http.MethodGet && request.Method != http.MethodHead || request.URL.RawPath != "" {
		return false
	}
	name, found := strings.CutPrefix(request.URL.Path, "/assets/")
	return request.URL.Path == "/" || found && fs.ValidPath(name) && !strings.Contains(name, "/")
}

func (r *relay) hasKey(request *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(request.Header.Get(keyHeader)), []byte(r.key)) == 1
}

// isOfOwnPage reports whether a request comes from the page or from the person.
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
		case name == keyHeader || name == "Cookie" || name == "Authorization" || name == "Origin" || name == "Referer",
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

// setHeaders sets the headers of what this server answers itself. The gateway has set those of its
// answers.
func setHeaders(header http.Header) {
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
}

func refuse(w http.ResponseWriter, code int, text string) {
	setHeaders(w.Header())
	http.Error(w, printer.Sanitize(text), code)
}
