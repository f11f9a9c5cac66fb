package observe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/observe/loglevel"
)

// shutdownTimeout is how long running requests may go on when Serve ends.
const shutdownTimeout = 2 * time.Second

// AdminConfig says where the admin server listens.
type AdminConfig struct {
	// Listen is a TCP address, host:port; port 0 takes a free one.
	Listen string
	// Profiling serves /debug/pprof.
	Profiling bool
}

// RegisterFlags adds --admin-listen and --profiling.
func (c *AdminConfig) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Listen, "admin-listen", c.Listen,
		"Address of the HTTPS server with /metrics, /livez, /readyz and /loops, host:port. With --insecure it serves plain HTTP, on loopback only.")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "Serve profiles at /debug/pprof of --admin-listen.")
}

// Validate returns all problems of c.
func (c *AdminConfig) Validate() []error {
	_, port, err := net.SplitHostPort(c.Listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return []error{fmt.Errorf("--admin-listen %q is not host:port: %w", c.Listen, err)}
	}
	return nil
}

// AdminDeps are the sources of the admin server.
type AdminDeps struct {
	// Gatherer is the source of /metrics; nil means no metrics.
	Gatherer prometheus.Gatherer
	// Live and Ready are the checks of /livez and /readyz.
	Live, Ready *Checks
	// Loops returns the value of /loops, which is served as JSON; nil means an empty list.
	Loops func() any
	// LogLevel is the level that loglevel.Path shows and changes; nil means no such path.
	LogLevel *LogLevel
	// Flags are the values of all flags, which FlagsPath shows; nil means no such path.
	Flags map[string]string
	// Logger receives changes of the log level, and errors of the HTTP server at debug; nil
	// discards them.
	Logger *slog.Logger
	// Access decides about the requests; nil serves plain HTTP on loopback.
	Access *httpaccess.Access
}

// Admin is the HTTP server for operators, probes and Prometheus.
type Admin struct {
	server *http.Server
	access *httpaccess.Access
}

// NewAdmin returns an admin server. It starts nothing and does not listen.
func NewAdmin(cfg AdminConfig, deps AdminDeps) *Admin {
	logger := cmp.Or(deps.Logger, slog.New(slog.DiscardHandler))
	return &Admin{access: deps.Access, server: &http.Server{
		Addr:              cfg.Listen,
		Handler:           routes(cfg, deps),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // pprof extends it by the duration of a profile
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    authn.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}}
}

// ListenAdmin opens the address of cfg. Its error names the flag.
func ListenAdmin(ctx context.Context, cfg AdminConfig) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin server: %w; choose another address with --admin-listen", err)
	}
	return l, nil
}

// Serve serves requests on l until ctx ends. Then it waits up to two seconds for running requests,
// closes l and returns nil. It fails if it would serve plain HTTP beyond loopback. Call it once.
func (a *Admin) Serve(ctx context.Context, l net.Listener) error {
	l, err := a.access.Listener(l, "--admin-listen")
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if address, ok := l.Addr().(*net.TCPAddr); ok && a.access.Insecure() && address.IP.IsLoopback() {
		a.server.Handler = ownNamesOnly(a.server.Handler)
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		a.shutdown()
	})
	err = a.server.Serve(l)
	if stop() { // ctx has not ended: the listener failed, so open connections must close
		a.shutdown()
		return fmt.Errorf("admin server on %s: %w", l.Addr(), err)
	}
	<-stopped
	return nil
}

// shutdown waits for running requests for shutdownTimeout at most, because a profile must not delay
// the end of the process.
func (a *Admin) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := a.server.Shutdown(ctx); err != nil {
		_ = a.server.Close() // the deadline was the error; closing cannot be retried
	}
}

const (
	// scrapes and profiles bound the concurrent costly requests. Further requests are refused, so
	// that they cannot starve the process.
	scrapes  = 4
	profiles = 2
	// profileSeconds is the longest profile; pprof has no limit.
	profileSeconds = 120
)

const index = `/livez            whether this process is alive; ?verbose names the checks
/readyz           whether it is ready; ?verbose names the checks
/loops            state of each loop, as JSON
/metrics          for Prometheus
`

// FlagsPath is the path of the flags on the admin server.
const FlagsPath = "/flags"

// routes are the admin server's paths. Probes are open; every other path needs the right to get it,
// or to put it for a change.
func routes(cfg AdminConfig, deps AdminDeps) http.Handler {
	mux := http.NewServeMux()
	paths := index
	if cfg.Profiling {
		paths += "/debug/pprof/     profiles\n"
		routeProfiles(mux)
	}
	if deps.LogLevel != nil {
		paths += loglevel.Path + "  the log level; PUT ?level=debug&for=10m changes it\n"
		mux.HandleFunc("GET "+loglevel.Path, deps.LogLevel.serve)
		mux.HandleFunc("PUT "+loglevel.Path, deps.LogLevel.serve)
		mux.HandleFunc("DELETE "+loglevel.Path, deps.LogLevel.serve)
	}
	if deps.Flags != nil {
		paths += FlagsPath + "            the values of all flags, as JSON\n"
		mux.HandleFunc("GET "+FlagsPath, jsonOf(func() any { return deps.Flags }))
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(paths))
	})
	mux.HandleFunc("GET /loops", jsonOf(deps.Loops))
	mux.Handle("GET /metrics", metrics(deps.Gatherer))
	probes := http.NewServeMux()
	probes.HandleFunc("GET /livez", Probe("livez", deps.Live, deps.Access))
	probes.HandleFunc("GET /readyz", Probe("readyz", deps.Ready, deps.Access))
	closed := authorized(deps.Access, deps.Logger, mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" || r.URL.Path == "/readyz" {
			probes.ServeHTTP(w, r)
			return
		}
		closed.ServeHTTP(w, r)
	})
}

// ownNamesOnly refuses names of other hosts: a website whose name resolves to 127.0.0.1 would read
// metrics and profiles of a server with --insecure.
func ownNamesOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpaccess.IsOwnName(r.Host) {
			http.Error(w, "this server listens on loopback; use 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorized lets a request through if its caller may get its path, or put it for a change, which
// is logged.
func authorized(access *httpaccess.Access, logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known, err := access.Known(r)
		if err == nil {
			err = permitted(access, known)
		}
		if err != nil {
			http.Error(w, status.Convert(err).Message(), httpaccess.Refuse(w.Header(), err))
			return
		}
		if logger != nil && !isRead(known.Method) {
			logger.Log(known.Context(), levelOfChange(logger), "change by a request", "method", known.Method, "path", known.URL.Path,
				"level", known.URL.Query().Get("level"), "for", known.URL.Query().Get("for"), "user", authn.FromContext(known.Context()).User.Name)
		}
		next.ServeHTTP(w, known)
	})
}

// levelOfChange returns the level of a record that the log must have: a changed log level must not
// hide the next change.
func levelOfChange(logger *slog.Logger) slog.Level {
	if logger.Enabled(context.Background(), slog.LevelWarn) {
		return slog.LevelWarn
	}
	return slog.LevelError
}

func isRead(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

func permitted(access *httpaccess.Access, known *http.Request) error {
	if isRead(known.Method) {
		return access.MayGet(known, known.URL.Path)
	}
	return access.MayPut(known, known.URL.Path)
}

// routeProfiles adds the handlers that net/http/pprof registers on the default mux.
func routeProfiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/{$}", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	slots := make(chan struct{}, profiles)
	mux.Handle("GET /debug/pprof/profile", bounded(slots, pprof.Profile))
	mux.Handle("GET /debug/pprof/trace", bounded(slots, pprof.Trace))
	mux.Handle("GET /debug/pprof/{profile}", bounded(slots, pprof.Index))
}

// bounded refuses a profile that is too long, or that has no free slot. Handlers with the same
// slots share the limit.
func bounded(slots chan struct{}, record http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if text := r.FormValue("seconds"); text != "" {
			// Also refuses NaN.
			if seconds, err := strconv.ParseFloat(text, 64); err != nil || !(seconds >= 0 && seconds <= profileSeconds) {
				http.Error(w, fmt.Sprintf("seconds must be between 0 and %d", profileSeconds), http.StatusBadRequest)
				return
			}
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			record(w, r)
		default:
			http.Error(w, "too many profiles are being recorded; try again later", http.StatusServiceUnavailable)
		}
	}
}

func metrics(gatherer prometheus.Gatherer) http.Handler {
	if gatherer == nil {
		gatherer = prometheus.Gatherers{}
	}
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		// One broken collector must not hide the others.
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapes,
	})
}

// jsonOf returns a handler that answers with a value as it is then; without value, with an empty
// list.
func jsonOf(value func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var answer any = []struct{}{}
		if value != nil {
			answer = value()
		}
		body, err := json.MarshalIndent(answer, "", "  ")
		writeJSON(w, body, err)
	}
}

// writeJSON answers with an encoded value, or with the error of its encoding.
func writeJSON(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n'))
}
