package process

import (
	"fmt"
	"log/slog"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// newHTTPAccess returns the access of the HTTP servers of a process; nil with --insecure. They have
// the certificates, the callers and the rights of the gRPC server.
func newHTTPAccess(cfg Config, access *access, logger *slog.Logger) (*httpaccess.Access, error) {
	if cfg.RPC.Insecure {
		return nil, nil
	}
	// The gRPC server has registered the metrics of the files.
	server, err := cfg.RPC.TLS.Server(logger)
	if err != nil {
		return nil, fmt.Errorf("set up TLS of HTTP (--tls-cert-file, --tls-key-file, --client-ca-file): %w", err)
	}
	return httpaccess.New(httpaccess.Config{
		TLS: server.TLS(), Authenticator: access.authenticator, Authorizer: access.authorizer,
		Refused: func(r *http.Request, caller *authn.Caller, err error) { logRefusal(logger, r, caller, err) },
	}), nil
}

func logRefusal(logger *slog.Logger, r *http.Request, caller *authn.Caller, err error) {
	if caller == nil {
		caller = &authn.Caller{}
	}
	level := slog.LevelWarn
	if status.Code(err) == codes.Unavailable {
		level = slog.LevelInfo
	}
	logger.Log(r.Context(), level, "refused HTTP request", "method", r.Method, "path", r.URL.Path,
		"user", caller.User.Name, "peer", r.RemoteAddr, "reason", rpcerror.ReasonOf(err))
}
