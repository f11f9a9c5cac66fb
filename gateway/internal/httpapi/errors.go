package httpapi

import (
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Reasons of errors that come from no RPC.
const (
	unknownPathReason      rpcerror.Reason = "UNKNOWN_PATH"
	methodNotAllowedReason rpcerror.Reason = "METHOD_NOT_ALLOWED"
	unexpectedBodyReason   rpcerror.Reason = "UNEXPECTED_BODY"
	foreignHostReason      rpcerror.Reason = "FOREIGN_HOST"
	crossOriginReason      rpcerror.Reason = "CROSS_ORIGIN"
)

// writeError answers a request that reaches no RPC, in the format of an RPC error.
func writeError(w http.ResponseWriter, r *http.Request, code int) {
	write(w, r, code, errorOf(r, code))
}

func write(w http.ResponseWriter, r *http.Request, code int, err error) {
	body, marshalErr := newMarshaler().Marshal(status.Convert(err).Proto())
	if marshalErr != nil { // possible only for text that is not UTF-8, which rpcerror repairs
		http.Error(w, http.StatusText(code), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may be gone
	}
}

func errorOf(r *http.Request, code int) error {
	switch code {
	case http.StatusNotFound:
		return rpcerror.New(codes.NotFound, unknownPathReason,
			fmt.Sprintf("there is nothing at %q; try / or /v1/openapi.json", r.URL.Path))
	case http.StatusMethodNotAllowed:
		return rpcerror.New(codes.Unimplemented, methodNotAllowedReason, fmt.Sprintf("%s is not allowed at %q", r.Method, r.URL.Path))
	case http.StatusRequestEntityTooLarge:
		return rpcerror.New(codes.InvalidArgument, unexpectedBodyReason, "a GET carries no body, and that of a POST is too long")
	case http.StatusUnsupportedMediaType:
		return rpcerror.New(codes.InvalidArgument, unexpectedBodyReason, "the Content-Type of a body must be application/json")
	case http.StatusForbidden:
		return rpcerror.New(codes.PermissionDenied, crossOriginReason,
			fmt.Sprintf("a page of another site (%q) may not send this request", r.Header.Get("Origin")))
	case http.StatusMisdirectedRequest:
		return rpcerror.New(codes.PermissionDenied, foreignHostReason,
			fmt.Sprintf("this server listens on loopback and does not serve the host %q; use 127.0.0.1 or localhost", r.Host))
	default:
		return rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, http.StatusText(code))
	}
}
