package api

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// The rules of StreamHeartbeatsRequest in heartbeat.proto. Protovalidate is too slow for
// heartbeats; a test compares both.
const (
	maxClassBytes = 63
	maxNameBytes  = 253
	maxBootBytes  = 64

	maxRegistrations = 1000
	maxBeats         = 10_000

	maxConditions   = 16
	maxTypeBytes    = 63
	maxReasonBytes  = 63
	maxMessageRunes = 256
)

// validate returns INVALID_ARGUMENT with the path of the first field that violates a rule.
func validate(request *leasev1.StreamHeartbeatsRequest) error {
	switch {
	case request.Sequence == 0:
		return invalid("sequence", "must be greater than 0")
	case len(request.Registrations) > maxRegistrations:
		return invalid("registrations", fmt.Sprintf("must be %d items at most, got %d", maxRegistrations, len(request.Registrations)))
	case len(request.Handles) > maxBeats:
		return invalid("handles", fmt.Sprintf("must be %d items at most, got %d", maxBeats, len(request.Handles)))
	case len(request.Reports) > maxBeats:
		return invalid("reports", fmt.Sprintf("must be %d items at most, got %d", maxBeats, len(request.Reports)))
	}
	for i, registration := range request.Registrations {
		if field, rule := validateRegistration(registration); field != "" {
			return invalid(fmt.Sprintf("registrations[%d].%s", i, field), rule)
		}
	}
	for i, report := range request.Reports {
		if field, rule := validateReport(report.GetReport()); field != "" {
			return invalid(fmt.Sprintf("reports[%d].report.%s", i, field), rule)
		}
	}
	return nil
}

func validateRegistration(r *leasev1.Registration) (field, rule string) {
	if r.GetHolder() == nil {
		return "holder", "must be set"
	}
	if field, rule = validateHolder(r.Holder); field != "" {
		return "holder." + field, rule
	}
	if field, rule = validateReport(r.Report); field != "" {
		return "report." + field, rule
	}
	return "", ""
}

// validateReport returns the first field that violates a rule, and the rule; an empty field if
// there is none.
func validateReport(r *leasev1.Report) (field, rule string) {
	switch {
	case r == nil:
		return "", ""
	case !isAge(r.ObservedAge):
		return "observed_age", "must not be negative"
	case !isAge(r.CutOffAge):
		return "cut_off_age", "must not be negative"
	case len(r.Conditions) > maxConditions:
		return "conditions", fmt.Sprintf("must be %d items at most, got %d", maxConditions, len(r.Conditions))
	}
	for i, c := range r.Conditions {
		if field, rule := validateCondition(c); field != "" {
			return fmt.Sprintf("conditions[%d].%s", i, field), rule
		}
	}
	return "", ""
}

func validateCondition(c *leasev1.ReportedCondition) (field, rule string) {
	switch {
	case !isConditionType(c.GetType()):
		return "type", fmt.Sprintf("must be 1 to %d letters and digits and begin with a letter", maxTypeBytes)
	case !isReason(c.GetReason()):
		return "reason", fmt.Sprintf("must be at most %d letters, digits and _", maxReasonBytes)
	case utf8.RuneCountInString(c.GetMessage()) > maxMessageRunes:
		return "message", fmt.Sprintf("must be at most %d characters", maxMessageRunes)
	case !isAge(c.GetTransitionAge()):
		return "transition_age", "must not be negative"
	}
	return "", ""
}

// isAge also accepts nil, which is no age.
func isAge(d *durationpb.Duration) bool { return d.AsDuration() >= 0 }

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
		case isLowerOrDigit(c), isUpper(c), c == '-', c == '.', c == '_', c == ':':
		default:
			return false
		}
	}
	return true
}

func isConditionType(s string) bool {
	if s == "" || len(s) > maxTypeBytes || isDigit(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLowerOrDigit(c) && !isUpper(c) {
			return false
		}
	}
	return true
}

// isReason also accepts an empty text.
func isReason(s string) bool {
	if len(s) > maxReasonBytes {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLowerOrDigit(c) && !isUpper(c) && c != '_' {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }

func isLowerOrDigit(c byte) bool { return 'a' <= c && c <= 'z' || isDigit(c) }
