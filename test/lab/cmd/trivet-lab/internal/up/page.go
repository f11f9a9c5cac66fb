package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/dashboard"
	"github.com/trivet-dev/trivet/internal/cli/localgateway"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
)

const (
	// pageAddress serves the page to the browser of the user, as `trivet dashboard` does.
	pageAddress = "127.0.0.1:7681"
	// headerTimeout limits how long a browser may take to send a request's header.
	headerTimeout = 10 * time.Second
)

// page gives a browser the gateway's page with the credentials of the administrator. Only a browser
// that has opened the URL gets an answer.
type page struct {
	url       string
	listener  net.Listener
	handler   http.Handler
	transport *client.HTTPTransport
}

// newPage listens. It sends no request. demo answers the buttons of the page; nil without a demo.
func newPage(settings localgateway.Settings, opts Options, demo http.Handler) (*page, error) {
	gateway := client.Gateway{}
	gateway.RegisterFlags(pflag.NewFlagSet("page", pflag.ContinueOnError), func(string) string { return "" })
	gateway.Server, gateway.HTTPServer, gateway.TLS = settings.Server, settings.HTTPServer, settings.TLS
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
	p.handler, p.url = dashboard.Handler(transport, listener.Addr().String(), faultcontroller.Path, demo)
	return p, nil
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

// writeEnvironment writes a file that a shell reads to get the settings, and returns its path.
func writeEnvironment(dir string, settings localgateway.Settings) (string, error) {
	var text strings.Builder
	for line := range strings.Lines(settings.Environment()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		fmt.Fprintf(&text, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	path := filepath.Join(dir, "client.env")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return "", fmt.Errorf("write the settings of clients: %w", err)
	}
	return path, nil
}
