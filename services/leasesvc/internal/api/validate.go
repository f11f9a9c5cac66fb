package api

import (
	"fmt"

	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// The rules of StreamHeartbeatsRequest in lease.proto. Protovalidate is too slow for heartbeats; a
// test compares both.
const (
	maxClassBytes = 63
	maxNameBytes  = 253
	maxBootBytes  = 64
	maxHolders    = 1000
	maxBeats      = 10_000
)

// validate returns INVALID_ARGUMENT with the path of the first field that violates a rule.
func validate(request *leasev1.StreamHeartbeatsRequest) error {
	switch {
	case request.Sequence == 0:
		return invalid("sequence", "must be greater than 0")
	case len(request.Holders) > maxHolders:
		return invalid("holders", fmt.Sprintf("must be %d items at most, got %d", maxHolders, len(request.Holders)))
	case len(request.Handles) > maxBeats:
		return invalid("handles", fmt.Sprintf("must be %d items at most, got %d", maxBeats, len(request.Handles)))
	}
	for i, holder := range request.Holders {
		if field, rule := validateHolder(holder); field != "" {
			return invalid(fmt.Sprintf("holders[%d].%s", i, field), rule)
		}
	}
	return nil
}

// validateHolder returns the first field that violates a rule, and the rule; an empty field if
// there is none.
func validateHolder(h *leasev1.Holder) (field, rule string) {
	switch {
	case !isLabel(h.GetClass()):
		return "class", fmt.Sprintf("must be 1 to %d of a-z, 0-9 and - and begin and end with a letter or digit", maxClassBytes)
	case !isSubdomain(h.GetName()):
		return "name", fmt.Sprintf("must be a DNS subdomain of at most %d bytes", maxNameBytes)
	case !isBootID(h.GetBootId()):
		return "boot_id", fmt.Sprintf("must be 1 to %d of A-Z, a-z, 0-9, -, ., _ and :", maxBootBytes)
	}
	return "", ""
}

func invalid(field, rule string) error {
	return rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason,
		fmt.Sprintf("invalid request: %s: %s", field, rule), rpcerror.WithField(field, rule))
}

func isLabel(s string) bool {
	return len(s) <= maxClassBytes && isSubdomainPart(s)
}

func isSubdomain(s string) bool {
	if len(s) > maxNameBytes {
		return false
	}
	start := 0
	for i := range len(s) {
		if s[i] == '.' {
			if !isSubdomainPart(s[start:i]) {
				return false
			}
			start = i + 1
		}
	}
	return isSubdomainPart(s[start:])
}

// isSubdomainPart reports whether s is a part of a subdomain. As in the .proto, its length has no
// limit.
func isSubdomainPart(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLowerOrDigit(c) && c != '-' {
			return false
		}
	}
	return true
}

func isBootID(s string) bool {
	if s == "" || len(s) > maxBootBytes {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case isLowerOrDigit(c), 'A' <= c && c <= 'Z', c == '-', c == '.', c == '_', c == ':':
		default:
			return false
		}
	}
	return true
}

func isLowerOrDigit(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
