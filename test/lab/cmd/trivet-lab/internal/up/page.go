package up

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/dashboard"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
)

const (
	// panelFiles is where the panel's files are: beside those of the page, which need no key.
	panelFiles = "/assets/"
	// panelTags load the files of the panel.
	panelTags = `<link rel="stylesheet" href="` + panelFiles + `demo.css"><script type="module" src="` + panelFiles + `demo.js"></script>`
	// pageAddress serves the page to the browser of the user, as `trivet dashboard` does.
	pageAddress = "127.0.0.1:7681"
	// headerTimeout limits how long a browser may take to send a request's header.
	headerTimeout = 10 * time.Second
)

// page gives a browser the gateway's page with the credentials of the administrator. Only a browser
// that has opened the URL gets answers of the API.
type page struct {
	url       string
	listener  net.Listener
	handler   http.Handler
	transport *client.HTTPTransport
}

// newPage listens. It sends no request. demo answers the buttons of the panel; nil without a demo,
// whose page has no panel.
func newPage(s settings, opts Options, demo http.Handler) (*page, error) {
	gateway := client.Gateway{}
	gateway.RegisterFlags(pflag.NewFlagSet("page", pflag.ContinueOnError), func(string) string { return "" })
	gateway.Server, gateway.HTTPServer, gateway.TLS = s.server, s.httpServer, s.tls
	transport, err := gateway.HTTPTransport()
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	address := pageAddress
	if opts.FreePorts {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	p := &page{listener: listener, transport: transport}
	var shown http.RoundTripper = transport
	if demo != nil {
		shown = panelTransport{transport}
	}
	p.handler, p.url = dashboard.Handler(shown, listener.Addr().String(), faultcontroller.Path, demo)
	return p, nil
}

// panel has the files of the panel that breaks the demo. The gateway's page does not mention them.
//
//go:embed demo.js demo.css
var panel embed.FS

// headEnd is the tag before which the page loads the panel.
const headEnd = "</head>"

// panelTransport adds the panel's files, and their tags to the HTML of the gateway's page. It
// answers a HEAD of the page with the response to a GET, of which the server sends the headers
// only.
type panelTransport struct{ gateway http.RoundTripper }

func (t panelTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	name, _ := strings.CutPrefix(request.URL.Path, panelFiles)
	if content, err := panel.ReadFile(name); err == nil {
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {mime.TypeByExtension(path.Ext(name))}},
			Body: io.NopCloser(bytes.NewReader(content)), ContentLength: int64(len(content)),
		}, nil
	}
	if request.URL.Path != "/" || request.Method != http.MethodGet && request.Method != http.MethodHead {
		return t.gateway.RoundTrip(request)
	}
	request = request.Clone(request.Context())
	request.Method = http.MethodGet
	for _, name := range []string{"Accept-Encoding", "If-None-Match", "Range"} { // the answer is the whole text
		request.Header.Del(name)
	}
	response, err := t.gateway.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	content, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("read the page: %w", err)
	}
	before, after, found := bytes.Cut(content, []byte(headEnd))
	if !found {
		return nil, fmt.Errorf("add the panel of the demo: the page of the gateway has no %s (content encoding %q)",
			headEnd, response.Header.Get("Content-Encoding"))
	}
	content = slices.Concat(before, []byte(panelTags+headEnd), after)
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	response.Header.Set("Content-Length", strconv.Itoa(len(content)))
	response.Header.Del("ETag") // it is that of the text without the panel
	return response, nil
}

// Run serves until ctx is done.
func (p *page) Run(ctx context.Context) error {
	defer p.transport.Close()
	server := &http.Server{Handler: p.handler, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // streams of the page have no end
	defer stop()
	if err := server.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}
