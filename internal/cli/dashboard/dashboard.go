// Package dashboard is `trivet dashboard`: the gateway's page for a person whose credentials a
// browser does not have.
//
// A server on loopback relays requests to the gateway's page and adds the person's credentials, so
// its use gives the person's rights. Only the files of the page, which are the same for all, need
// no key. The key is in the fragment of the printed URL, which the browser sends to no server; the
// page sends it as a header. A cookie would go to each port of 127.0.0.1, and so to servers of
// other users. A website does not have the key, nor has another user of this machine. The browser
// gets the URL in a file that only the person reads, because all users see the arguments of a
// process.
package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

const (
	// probeTimeout limits the first request, which shows that the gateway is reached.
	probeTimeout = 30 * time.Second
	// headerTimeout limits how long a client may take to send a request's header.
	headerTimeout = 10 * time.Second
)

// OpenFile shows an HTML file to the person.
type OpenFile func(ctx context.Context, file string) error

// NewCommand returns `trivet dashboard`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	return newCommand(streams, openInBrowser)
}

func newCommand(streams printer.Streams, openFile OpenFile) *cobra.Command {
	d := &dashboard{streams: streams, openFile: openFile}
	command := &cobra.Command{
		Use:   "dashboard",
		Short: "Open the gateway's page in a browser, with your credentials",
		Long: `Open the gateway's page in a browser. The command listens on 127.0.0.1 and relays the page with your
credentials, until it is interrupted.

The printed URL has a random key. Only a page that was opened with this URL gets data, so that neither a
website nor another user of this machine can act with your rights. The URL itself gives your rights while the
command runs: do not share it.

Exit codes:
  0   Interrupted.
  2   The gateway's page was not reached.
  64  The command line is wrong.`,
		Example: `  trivet dashboard
  trivet dashboard --context production --no-open
  trivet dashboard --as-serviceaccount team/viewer --port 8080`,
		RunE: func(command *cobra.Command, args []string) error {
			if err := exit.UsageError(d.validate(args)...); err != nil {
				return err
			}
			return d.run(command.Context())
		},
	}
	fs := command.Flags()
	d.gateway.RegisterFlags(fs, streams.Env)
	fs.StringVar(&d.gateway.HTTPServer, "http-server", d.gateway.HTTPServer,
		"The address of the page of the gateway of --server, host:port; default: port 7680 of its host (environment: TRIVET_HTTP_SERVER).")
	fs.IntVar(&d.port, "port", 0, "The port to listen on; 0 means any.")
	fs.BoolVar(&d.noOpen, "no-open", false, "Open no browser; only print the URL.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

type dashboard struct {
	streams  printer.Streams
	openFile OpenFile
	gateway  client.Gateway
	port     int
	noOpen   bool
}

func (d *dashboard) validate(args []string) []error {
	problems := d.gateway.Validate()
	if len(args) > 0 {
		problems = append(problems, fmt.Errorf("dashboard takes no arguments, got %q", args))
	}
	if d.port < 0 || d.port > 65535 {
		problems = append(problems, fmt.Errorf("--port=%d: must be between 0 and 65535", d.port))
	}
	return problems
}

func (d *dashboard) run(ctx context.Context) error {
	transport, err := d.gateway.HTTPTransport()
	if err != nil {
		return err
	}
	defer transport.Close()
	if err := d.probe(ctx, transport); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(d.port)))
	if err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "listen on loopback", Err: err, Try: "choose another --port, or 0 for any"}
	}
	return d.serve(ctx, listener, newRelay(transport, listener.Addr().String(), rand.Text()))
}

// probe asks for a file of the page once, so that a missing right is reported here and not in the
// browser. An older page has no such file, and would send no key.
func (d *dashboard) probe(ctx context.Context, transport http.RoundTripper) error {
	probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(probeCtx, http.MethodGet, "http://localhost"+keyFile, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close() // it is not read
		if response.StatusCode != http.StatusNotFound {
			return nil
		}
		err = errors.New("its page is older than this program, and has no " + keyFile)
	}
	if ctx.Err() != nil {
		return client.Interrupted()
	}
	failed := &exit.Error{Code: exit.Undetermined, Summary: "no page from " + d.gateway.Where(), Err: err}
	if cause, ok := errors.AsType[*exit.Error](err); ok {
		failed.Code, failed.Try = cause.Code, cause.Try
	}
	return failed
}

// serve serves until ctx is done.
func (d *dashboard) serve(ctx context.Context, listener net.Listener, relay *relay) error {
	server := &http.Server{Handler: relay, ReadHeaderTimeout: headerTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := relay.url()
	fmt.Fprintf(d.streams.Out, "%s\n", url)
	fmt.Fprintf(d.streams.Err, "The page of %s, until you press Ctrl-C. The URL gives your rights: do not share it.\n", d.gateway.Where())
	if !d.noOpen {
		remove, err := d.open(ctx, url)
		defer remove()
		if err != nil {
			fmt.Fprintf(d.streams.Err, "No browser was opened (%v); open the URL yourself.\n", err)
		}
	}
	defer context.AfterFunc(ctx, func() {
		_ = server.Close() // streams of the page have no end
	})()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return &exit.Error{Code: exit.Undetermined, Summary: "serve the page", Err: err}
	}
	return nil
}

// open opens the URL in a browser, by way of a file. The file is to be removed in any case.
func (d *dashboard) open(ctx context.Context, url string) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "trivet-dashboard-")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	file := filepath.Join(dir, "open.html")
	page := fmt.Sprintf("<!doctype html><meta http-equiv=refresh content=\"0; url=%s\"><title>Trivet</title>\n", html.EscapeString(url))
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return remove, err
	}
	return remove, d.openFile(ctx, file)
}

// openInBrowser starts the program that opens files for the person.
func openInBrowser(ctx context.Context, file string) error {
	name, args := "xdg-open", []string{file}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", file}
	}
	browser := exec.CommandContext(ctx, name, args...)
	if err := browser.Start(); err != nil {
		return err
	}
	go func() { _ = browser.Wait() }() // some of these programs last as long as the browser
	return nil
}
