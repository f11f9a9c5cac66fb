package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/gateway/internal/httpapi/openapi"
	bootstraproutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/bootstrap/v1"
	gatewayroutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/gateway/v1"
	leaseroutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/lease/v1"
	noderoutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/node/v1"
	shadowroutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/shadow/v1"
	sliceroutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/slice/v1"
	statusroutes "github.com/trivet-dev/trivet/gateway/internal/httpapi/routes/status/v1"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// services are the services with HTTP routes.
var services = []struct {
	file     protoreflect.FileDescriptor
	register func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error
}{
	{gatewayv1.File_trivet_gateway_v1_cluster_proto, gatewayroutes.RegisterClusterServiceHandler},
	{statusv1.File_trivet_status_v1_status_proto, statusroutes.RegisterStatusServiceHandler},
	{statusv1.File_trivet_status_v1_decision_proto, statusroutes.RegisterDecisionServiceHandler},
	{shadowv1.File_trivet_shadow_v1_shadow_proto, shadowroutes.RegisterShadowServiceHandler},
	{leasev1.File_trivet_lease_v1_lease_proto, leaseroutes.RegisterLeaseServiceHandler},
	{nodev1.File_trivet_node_v1_node_health_proto, noderoutes.RegisterNodeHealthServiceHandler},
	{slicev1.File_trivet_slice_v1_slice_proto, sliceroutes.RegisterSliceServiceHandler},
	{bootstrapv1.File_trivet_bootstrap_v1_baseline_proto, bootstraproutes.RegisterBaselineServiceHandler},
	{bootstrapv1.File_trivet_bootstrap_v1_apiserver_proto, bootstraproutes.RegisterAPIServerServiceHandler},
	{bootstrapv1.File_trivet_bootstrap_v1_finding_proto, bootstraproutes.RegisterFindingServiceHandler},
	{bootstrapv1.File_trivet_bootstrap_v1_repair_proto, bootstraproutes.RegisterRepairServiceHandler},
}

// Paths that need no caller.
const (
	livePath  = "/livez"
	readyPath = "/readyz"
)

// handler returns the API and the page behind the guard.
func (s *Server) handler(ctx context.Context, conn *grpc.ClientConn, address net.Addr) (http.Handler, error) {
	rpcs, err := s.newAPI(ctx, conn)
	if err != nil {
		return nil, err
	}
	api := http.NewServeMux()
	watches := asText(withoutHeaders(rpcs))
	api.Handle("/v1/", watches)
	api.Handle("/v1/watch", onlyGET(asText(combine(watches, s.logger))))
	api.Handle("/v1/openapi.json", onlyGET(http.HandlerFunc(serveDocument)))
	mux := http.NewServeMux()
	mux.Handle("/{$}", onlyGET(http.HandlerFunc(s.page.serveIndex)))
	mux.Handle("/assets/{name}", onlyGET(http.HandlerFunc(s.page.serveAsset)))
	mux.Handle("/v1/", api)
	mux.Handle("/clusters/{cluster}/v1/", s.onlyOwnCluster(api))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeError(w, r, http.StatusNotFound) })
	health := http.NewServeMux()
	health.Handle(livePath, onlyGET(observe.Probe("livez", nil, s.access)))
	health.Handle(readyPath, onlyGET(observe.Probe("readyz", s.ready, s.access)))
	return &guard{
		health: health, next: mux, access: s.access, callers: &s.callers, origins: http.NewCrossOriginProtection(),
		ownNamesOnly: s.access.Insecure() && isLoopback(address),
	}, nil
}

// newAPI returns the JSON mapping of the RPCs. HTTP headers and gRPC metadata are not converted.
func (s *Server) newAPI(ctx context.Context, conn *grpc.ClientConn) (*runtime.ServeMux, error) {
	var files []protoreflect.FileDescriptor
	for _, service := range services {
		files = append(files, service.file)
	}
	bound, err := bindingsOf(files...)
	if err != nil {
		return nil, err
	}
	drop := func(string) (string, bool) { return "", false }
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newMarshaler()),
		runtime.WithIncomingHeaderMatcher(drop),
		runtime.WithOutgoingHeaderMatcher(drop),
		runtime.WithOutgoingTrailerMatcher(drop),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithMetadata(s.callers.metadata),
		runtime.WithMiddlewares(bound.check(s.rpc, s.access.Insecure())),
		runtime.WithErrorHandler(answerError),
		runtime.WithRoutingErrorHandler(func(_ context.Context, mux *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
			if r.Context().Value(probeKey{}) != nil {
				return
			}
			if code == http.StatusMethodNotAllowed {
				setAllow(w.Header(), allowed(mux, w, r)...)
			}
			writeError(w, r, code)
		}),
	)
	var failed error
	for _, service := range services {
		failed = errors.Join(failed, service.register(ctx, mux, conn))
	}
	return mux, failed
}

// answerError adds an ErrorInfo to errors before the RPC, such as a query parameter that is
// malformed.
func answerError(ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	if st.Code() == codes.InvalidArgument && len(st.Details()) == 0 {
		err = rpcerror.Complete(st, rpcerror.ValidationFailedReason)
	}
	if st.Code() == codes.Unauthenticated {
		refuse(w, r, err)
		return
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, marshaler, w, r, err)
}

// checkText returns why a path or query cannot be text of a request: protobuf requires UTF-8.
func checkText(target *url.URL) error {
	if !utf8.ValidString(target.Path) {
		return errors.New("the path is not UTF-8")
	}
	query, err := url.ParseQuery(target.RawQuery)
	if err != nil {
		return fmt.Errorf("the query is malformed: %w", err)
	}
	for name, values := range query {
		for _, text := range append(values, name) {
			if !utf8.ValidString(text) {
				return errors.New("the query is not UTF-8")
			}
		}
	}
	return nil
}

// withoutHeaders hides the headers from the API, which converts some to metadata, a deadline or a
// trailer.
func withoutHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bare := r.WithContext(r.Context())
		bare.Header = http.Header{}
		next.ServeHTTP(w, bare)
	})
}

// probeKey is the key of a *bool in the context of a request that only asks for a route.
type probeKey struct{}

// allowed returns the methods that have a route at the path of a request.
func allowed(mux *runtime.ServeMux, w http.ResponseWriter, r *http.Request) []string {
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		found := false
		probe := r.Clone(context.WithValue(r.Context(), probeKey{}, &found))
		probe.Method = method
		mux.ServeHTTP(w, probe)
		if found {
			methods = append(methods, method)
		}
	}
	return methods
}

// setAllow names the methods of a path. HEAD works where GET does.
func setAllow(header http.Header, methods ...string) {
	if len(methods) > 0 && methods[0] == http.MethodGet {
		methods = slices.Insert(methods, 1, http.MethodHead)
	}
	header.Set("Allow", strings.Join(methods, ", "))
}

// onlyGET rejects what is neither GET nor HEAD.
func onlyGET(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			setAllow(w.Header(), http.MethodGet)
			writeError(w, r, http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// headKey is the key of the context of a HEAD, which is handled as a GET. net/http leaves out the
// body of the answer.
type headKey struct{}

func isHead(r *http.Request) bool { return r.Context().Value(headKey{}) != nil }

// asText rejects requests that are no text, and paths that end with a slash: no name is empty.
func asText(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkText(r.URL); err != nil {
			write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, err.Error()))
			return
		}
		if strings.HasSuffix(r.URL.Path, "/") {
			writeError(w, r, http.StatusNotFound)
			return
		}
		if r.Method == http.MethodHead {
			r = r.Clone(context.WithValue(r.Context(), headKey{}, true))
			r.Method = http.MethodGet
		}
		next.ServeHTTP(w, r)
	})
}

// onlyOwnCluster removes the cluster from the path. A gateway serves one cluster.
func (s *Server) onlyOwnCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("cluster") != s.cluster {
			writeError(w, r, http.StatusNotFound)
			return
		}
		http.StripPrefix("/clusters/"+s.cluster, next).ServeHTTP(w, r)
	})
}

func serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, openapi.Document()) // the client may be gone
}
