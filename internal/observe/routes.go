package observe

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// scrapes and profiles bound the costly requests that run at once; the
	// rest are turned away, so that they cannot starve the process they look at.
	scrapes  = 4
	profiles = 2
	// profileSeconds is the longest recording; pprof itself knows no bound.
	profileSeconds = 120
)

const index = `/livez            whether this process should live on; ?verbose names the checks
/readyz           whether it serves its purpose; ?verbose names the checks
/loops            what each loop does, as JSON
/metrics          for Prometheus
/debug/pprof/     profiles
`

// routes are the admin server's paths.
func routes(deps AdminDeps) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(index))
	})
	mux.HandleFunc("GET /livez", probe("livez", deps.Live))
	mux.HandleFunc("GET /readyz", probe("readyz", deps.Ready))
	mux.HandleFunc("GET /loops", loops(deps.Loops))
	mux.Handle("GET /metrics", metrics(deps.Gatherer))
	routeProfiles(mux)
	return mux
}

// routeProfiles serves what net/http/pprof would register on the default mux,
// which no server of ours uses.
func routeProfiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/{$}", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	places := make(chan struct{}, profiles)
	mux.Handle("GET /debug/pprof/profile", bounded(places, pprof.Profile))
	mux.Handle("GET /debug/pprof/trace", bounded(places, pprof.Trace))
	mux.Handle("GET /debug/pprof/{profile}", bounded(places, pprof.Index))
}

// bounded refuses a recording that would be too long, or that finds none of
// the places free. Handlers that share places share the bound.
func bounded(places chan struct{}, record http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if text := r.FormValue("seconds"); text != "" {
			// Written so that NaN is refused, too.
			if seconds, err := strconv.ParseFloat(text, 64); err != nil || !(seconds >= 0 && seconds <= profileSeconds) {
				http.Error(w, fmt.Sprintf("seconds must be between 0 and %d", profileSeconds), http.StatusBadRequest)
				return
			}
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
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

func loops(status func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var value any = []struct{}{}
		if status != nil {
			value = status()
		}
		body, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(body, '\n'))
	}
}
