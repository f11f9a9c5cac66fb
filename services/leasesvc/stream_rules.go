package leasesvc

import (
	"fmt"

	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// The rules for StreamHeartbeatsRequest that stand in lease.proto, written out, because a heartbeat must not pay for a rule
// engine. A test holds the two against each other.
const (
	maxClassBytes   = 63
	maxNameBytes    = 253
	maxBootBytes    = 64
	maxHolders      = 1000
	maxMessageBeats = 10_000
)

// checkStreamRequest returns INVALID_ARGUMENT with the path of the first field that breaks a rule.
func checkStreamRequest(m *leasev1.StreamHeartbeatsRequest) error {
	switch {
	case m.Sequence == 0:
		return invalid("sequence", "must be greater than 0")
	case len(m.Holders) > maxHolders:
		return invalid("holders", fmt.Sprintf("must be %d items at most, got %d", maxHolders, len(m.Holders)))
	case len(m.Handles) > maxMessageBeats:
		return invalid("handles", fmt.Sprintf("must be %d items at most, got %d", maxMessageBeats, len(m.Handles)))
	}
	for i, holder := range m.Holders {
		if field, rule := checkHolder(holder); field != "" {
			return invalid(fmt.Sprintf("holders[%d].%s", i, field), rule)
		}
	}
	return nil
}

// checkHolder returns the first field that breaks its rule, and the rule; an empty field when all is well.
func checkHolder(h *leasev1.Holder) (field, rule string) {
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
	return len(s) <= maxClassBytes && isPart(s)
}

func isSubdomain(s string) bool {
	if len(s) > maxNameBytes {
		return false
	}
	begin := 0
	for i := range len(s) {
		if s[i] == '.' {
			if !isPart(s[begin:i]) {
				return false
			}
			begin = i + 1
		}
	}
	return isPart(s[begin:])
}

// isPart tells whether s is what stands between two dots of a subdomain. Its length is not limited, in the .proto neither.
func isPart(s string) bool {
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
