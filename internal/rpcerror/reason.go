package rpcerror

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Domain is the ErrorInfo domain of every error Trivet makes.
const Domain = "trivet.dev"

// GRPCAddressKey is the metadata key under which NOT_LEADER says the address of the leader.
const GRPCAddressKey = "grpc_address"

// Reason is the stable code of a failure, unique within [Domain].
type Reason string

// Reasons of every service. Services declare further reasons.
const (
	// NotLeaderReason: another replica holds the term; see [NotLeader].
	NotLeaderReason Reason = "NOT_LEADER"
	// ShuttingDownReason: this replica is stopping; see [ShuttingDown].
	ShuttingDownReason Reason = "SHUTTING_DOWN"
	// ValidationFailedReason: the request breaks the rules written in its .proto file; BadRequest
	// names the fields.
	ValidationFailedReason Reason = "VALIDATION_FAILED"
	// InvalidPageTokenReason: the page token does not come from a list with the same arguments.
	InvalidPageTokenReason Reason = "INVALID_PAGE_TOKEN"
	// ResumeTokenExpiredReason: a watch cannot resume at its resume token.
	ResumeTokenExpiredReason Reason = "RESUME_TOKEN_EXPIRED"
	// WatchTooSlowReason: the server no longer has the next event of a watch.
	WatchTooSlowReason Reason = "WATCH_TOO_SLOW"
	// ETagMismatchReason: the object or plan has changed since its etag was read.
	ETagMismatchReason Reason = "ETAG_MISMATCH"
	// UnknownFieldReason: the request has a field that the server does not know.
	UnknownFieldReason Reason = "UNKNOWN_FIELD"
	// HistoryUnavailableReason: the request sets as_of_time, and the server keeps no history.
	HistoryUnavailableReason Reason = "HISTORY_UNAVAILABLE"
	// RequestIDReusedReason: an earlier request with other content had the same request_id.
	RequestIDReusedReason Reason = "REQUEST_ID_REUSED"
	// UnknownMethodReason: the server has no such method.
	UnknownMethodReason Reason = "UNKNOWN_METHOD"
	// InternalReason: a defect or a failure the caller can do nothing about; the cause is in the
	// server's log.
	InternalReason Reason = "INTERNAL"
	// PanicReason: the handler panicked; the stack is in the server's log.
	PanicReason Reason = "PANIC"
)

// ReasonOf returns the reason of the first ErrorInfo of [Domain] in err or in what it wraps, and ""
// if there is none.
func ReasonOf(err error) Reason {
	return Reason(infoOf(err).GetReason())
}

// MetadataOf returns the value under key in the ErrorInfo that [ReasonOf] reads, and "" if there is
// none.
func MetadataOf(err error, key string) string {
	return infoOf(err).GetMetadata()[key]
}

// RetryAfterOf returns the retry delay of err, or 0 if it has none; see [WithRetryAfter].
func RetryAfterOf(err error) time.Duration {
	st, ok := status.FromError(err)
	if !ok {
		return 0
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return max(info.GetRetryDelay().AsDuration(), 0)
		}
	}
	return 0
}

// infoOf may return nil, which the generated getters accept.
func infoOf(err error) *errdetails.ErrorInfo {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}
