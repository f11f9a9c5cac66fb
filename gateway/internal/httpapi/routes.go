package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// handler returns the API and the page behind the guard.
func (s *Server) handler(ctx context.Context, conn *grpc.ClientConn, address net.Addr) (http.Handler, error) {
	api := newAPI()
	if err := errors.Join(
		gatewayv1.RegisterGatewayServiceHandler(ctx, api, conn), gatewayv1.RegisterNodeServiceHandler(ctx, api, conn),
		gatewayv1.RegisterSliceServiceHandler(ctx, api, conn), gatewayv1.RegisterBootstrapServiceHandler(ctx, api, conn),
	); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page.serveIndex)
	mux.HandleFunc("GET /assets/{name}", s.page.serveAsset)
	mux.Handle("/v1/", onlyGET(withoutHeaders(api)))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeError(w, r, http.StatusNotFound) })
	return guard(mux, isLoopback(address)), nil
}

// newAPI returns the JSON mapping of the RPCs. HTTP headers and gRPC metadata are not converted.
func newAPI() *runtime.ServeMux {
	drop := func(string) (string, bool) { return "", false }
	return runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newMarshaler()),
		runtime.WithIncomingHeaderMatcher(drop),
		runtime.WithOutgoingHeaderMatcher(drop),
		runtime.WithOutgoingTrailerMatcher(drop),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithMiddlewares(parametersOf(gatewayv1.File_trivet_gateway_v1_gateway_proto, gatewayv1.File_trivet_gateway_v1_nodes_proto,
			gatewayv1.File_trivet_gateway_v1_slices_proto, gatewayv1.File_trivet_gateway_v1_bootstrap_proto).check),
		runtime.WithErrorHandler(answerError),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
			writeError(w, r, code)
		}),
	)
}

// newMarshaler writes empty fields, too, so that scripts can rely on each field.
func newMarshaler() runtime.Marshaler {
	return &runtime.JSONPb{
		MarshalOptions:   protojson.MarshalOptions{EmitUnpopulated: true},
		UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
	}
}

// answerError adds an ErrorInfo to errors before the RPC, such as a query parameter that is
// malformed.
func answerError(ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	if st.Code() == codes.InvalidArgument && len(st.Details()) == 0 {
		err = rpcerror.Complete(st, rpcerror.ValidationFailedReason)
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, marshaler, w, r, err)
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

// onlyGET rejects HEAD, which the API does not have and which would not end for a watch.
func onlyGET(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			writeError(w, r, http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}
