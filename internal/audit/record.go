package audit

import (
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/wording"
)

// Decision says whether a call was allowed.
type Decision string

const (
	Allowed Decision = "allow"
	Denied  Decision = "deny"
)

// Record is one call, or one item of a batch.
type Record struct {
	// Time is the end of the call; zero means now.
	Time time.Time
	// RequestID is the request_id of the request, if it has one.
	RequestID string
	// Caller is nil for a call whose credentials do not count.
	Caller *authn.Caller
	// Method is the full gRPC method, or the verb and path of HTTP. Object is the name field of the
	// request.
	Method, Object string
	// Decision and DecisionReason are the answer of the authorization.
	Decision       Decision
	DecisionReason string
	// Repeatable says that the caller needs no right for the call and may repeat it, so that its
	// records are limited as denials are.
	Repeatable bool
	// Code and Reason are the outcome of the call.
	Code     codes.Code
	Reason   string
	Duration time.Duration
}

const (
	// maxText bounds each name in a record, and maxGroups their number: callers choose them.
	maxText   = 512
	maxGroups = 32
	// nodeNameKey is the extra key with the node of a ServiceAccount token.
	nodeNameKey = "authentication.kubernetes.io/node-name"
)

// attributes returns the fields of a record in their order. Empty fields are omitted.
func (r *Record) attributes() []slog.Attr {
	var all []slog.Attr
	add := func(key, value string) {
		if value != "" {
			all = append(all, slog.String(key, wording.Clip(value, maxText)))
		}
	}
	add("decision", string(r.Decision))
	add("decision_reason", r.DecisionReason)
	add("user", r.Caller.User.Name)
	add("uid", r.Caller.User.UID)
	if groups := r.Caller.User.Groups; len(groups) > 0 {
		all = append(all, slog.Any("groups", cutAll(groups)))
	}
	if nodes := r.Caller.User.Extra[nodeNameKey]; len(nodes) > 0 {
		add("node", nodes[0])
	}
	if r.Caller.Forwarded {
		add("forwarded_by", r.Caller.Peer.Name)
	}
	add("address", r.Caller.Address)
	add("method", r.Method)
	add("object", r.Object)
	add("request_id", r.RequestID)
	add("code", r.Code.String())
	add("reason", r.Reason)
	return append(all, slog.Duration("duration", r.Duration))
}

// cutNames shortens what the caller chose, so that records that wait need little memory.
func (r *Record) cutNames() {
	for _, text := range []*string{&r.Method, &r.Object, &r.RequestID, &r.DecisionReason} {
		if len(*text) > maxText {
			*text = wording.Clip(*text, maxText)
		}
	}
}

func cutAll(texts []string) []string {
	short := slices.Clone(texts[:min(len(texts), maxGroups)])
	for i := range short {
		short[i] = wording.Clip(short[i], maxText)
	}
	if len(texts) > maxGroups {
		short = append(short, "…")
	}
	return short
}
