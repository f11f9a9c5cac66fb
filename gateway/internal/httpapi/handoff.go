package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/trivet-dev/trivet/internal/authn"
)

// handoffKey is the metadata key with the number of a caller. Only this package connects to the
// in-memory server, and no header of a request becomes metadata.
const handoffKey = "x-http-caller"

// handoff passes the callers of HTTP requests to the in-memory gRPC server, because values of a
// context do not pass a connection. It is the authenticator of that server.
type handoff struct {
	last    atomic.Uint64
	callers sync.Map // of *authn.Caller, by number as text
}

type handoffNumber struct{}

// hold returns the request with a number by which its caller is found until release is called.
func (h *handoff) hold(r *http.Request) (held *http.Request, release func()) {
	number := strconv.FormatUint(h.last.Add(1), 10)
	h.callers.Store(number, authn.FromContext(r.Context()))
	return r.WithContext(context.WithValue(r.Context(), handoffNumber{}, number)), func() { h.callers.Delete(number) }
}

// metadata returns the metadata of the calls of a held request.
func (h *handoff) metadata(ctx context.Context, _ *http.Request) metadata.MD {
	number, _ := ctx.Value(handoffNumber{}).(string)
	return metadata.Pairs(handoffKey, number)
}

// Authenticate returns the caller of the held request that a call is for.
func (h *handoff) Authenticate(_ context.Context, request authn.Request) (*authn.Caller, error) {
	for _, number := range request.Values(handoffKey) {
		if caller, held := h.callers.Load(number); held {
			found, _ := caller.(*authn.Caller)
			return found, nil
		}
	}
	return nil, authn.NotAuthenticated("the HTTP request of this call has ended")
}
