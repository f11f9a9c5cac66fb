package process

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// maxLoggedPath bounds the bytes of a path in the log.
const maxLoggedPath = 256

// httpServers has the access of the HTTP servers of a process: its admin server and that of its
// service. Both are nil with --insecure. They have the certificates, the callers and the rights of
// the gRPC server, and limits of connections of their own.
type httpServers struct{ admin, service *httpaccess.Access }

func newHTTPServers(cfg Config, access *access, logger *slog.Logger, registry prometheus.Registerer) (httpServers, error) {
	if cfg.RPC.Insecure {
		return httpServers{}, nil
	}
	// The gRPC server registers the metrics of the files.
	server, err := cfg.RPC.TLS.Server(logger)
	if err != nil {
		return httpServers{}, fmt.Errorf("set up TLS of HTTP (--tls-cert-file, --tls-key-file, --client-ca-file): %w", err)
	}
	refused := &refusals{to: access.audit, logger: logger, lines: rate.NewLimiter(refusalsPerSecond, refusalBurst)}
	newAccess := func(name string) (*httpaccess.Access, error) {
		connections, err := connlimit.New(cfg.RPC.Connections, registry, name)
		if err != nil {
			return nil, err
		}
		return httpaccess.New(httpaccess.Config{
			TLS: server.TLS(), Connections: connections, Authenticator: access.authenticator, Authorizer: access.authorizer,
			AlwaysAllow: cfg.alwaysAllows(), Refused: refused.record,
		}), nil
	}
	var servers httpServers
	if servers.admin, err = newAccess("admin"); err != nil {
		return httpServers{}, err
	}
	servers.service, err = newAccess("http")
	return servers, err
}

// Callers without an identity cause lines of the log, so their number is limited.
const (
	refusalsPerSecond = 10
	refusalBurst      = 100
)

// refusals records refused requests. It is safe for concurrent use.
type refusals struct {
	to     *audit.Log
	logger *slog.Logger
	lines  *rate.Limiter
}

// record writes a refused request into the audit log and, as a failed gRPC call, into the log.
func (f *refusals) record(r *http.Request, caller *authn.Caller, err error) {
	reason := string(rpcerror.ReasonOf(err))
	path := authn.Redact(r.URL.Path)
	f.to.Write(audit.Record{
		Caller: caller, Method: r.Method + " " + path, Decision: audit.Denied, DecisionReason: authn.Redact(status.Convert(err).Message()),
		Code: status.Code(err), Reason: reason,
	})
	if !f.lines.Allow() {
		return
	}
	user := authn.AnonymousUser
	if caller != nil {
		user = caller.User.Name
	}
	level := slog.LevelWarn
	if status.Code(err) == codes.Unavailable {
		level = slog.LevelInfo
	}
	f.logger.Log(r.Context(), level, "refused HTTP request",
		"method", r.Method, "path", path[:min(len(path), maxLoggedPath)], "user", user, "peer", r.RemoteAddr, "reason", reason)
}
