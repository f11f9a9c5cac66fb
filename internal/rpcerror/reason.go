package rpcerror

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Domain is the ErrorInfo domain of every error Trivet makes.
const Domain = "trivet.dev"

// RedirectAddressKey is the metadata key under which NOT_LEADER says the address of the leader.
const RedirectAddressKey = "redirect_address"

// Reason is the stable code of a failure, unique within [Domain]. The enum ErrorReason of
// trivet.meta lists all reasons with their codes and meanings.
type Reason string

// Reasons of every service. Services declare further reasons.
const (
	NotLeaderReason        Reason = "NOT_LEADER" // see [NotLeader]
	NoLeaderReason         Reason = "NO_LEADER"  // see [NotLeader]
	ShuttingDownReason     Reason = "SHUTTING_DOWN"
	NotAuthenticatedReason Reason = "NOT_AUTHENTICATED"
	NotAuthorizedReason    Reason = "NOT_AUTHORIZED"
	// AccessReviewUnavailableReason means that no kube-apiserver answers a review of access.
	AccessReviewUnavailableReason Reason = "ACCESS_REVIEW_UNAVAILABLE"
	WrongClusterReason            Reason = "WRONG_CLUSTER"
	ValidationFailedReason        Reason = "VALIDATION_FAILED"
	UnknownFieldReason            Reason = "UNKNOWN_FIELD"
	MalformedMessageReason        Reason = "MALFORMED_MESSAGE"
	RequestIDReusedReason         Reason = "REQUEST_ID_REUSED"
	ETagMismatchReason            Reason = "ETAG_MISMATCH"
	HistoryUnavailableReason      Reason = "HISTORY_UNAVAILABLE"
	InvalidPageTokenReason        Reason = "INVALID_PAGE_TOKEN"
	ResumeTokenExpiredReason      Reason = "RESUME_TOKEN_EXPIRED"
	WatchTooSlowReason            Reason = "WATCH_TOO_SLOW"
	CacheNotSyncedReason          Reason = "CACHE_NOT_SYNCED"
	ConflictReason                Reason = "CONFLICT"
	APIServerUnreachableReason    Reason = "APISERVER_UNREACHABLE"
	EtcdUnreachableReason         Reason = "ETCD_UNREACHABLE"
	UnknownMethodReason           Reason = "UNKNOWN_METHOD"
	InternalReason                Reason = "INTERNAL"
	PanicReason                   Reason = "PANIC"
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
