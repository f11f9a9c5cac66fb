package resumetoken_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/resumetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

var format = resumetoken.Format{Instance: 7, Method: "trivet.test.v1.Tests/WatchTests", Arguments: "namespaces/a"}

func TestParse_ReturnsWhatEncodeGot(t *testing.T) {
	for _, want := range [][]uint64{{0}, {1, 2}, {math.MaxUint64, 0, 3}} {
		got, err := format.Parse(format.Encode(want...), len(want))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Parse(Encode(%v)) = %v, %v", want, got, err)
		}
	}
}

func TestParse_RefusesOtherTokens(t *testing.T) {
	token := format.Encode(1, 2)
	otherInstance, otherMethod, otherArguments := format, format, format
	otherInstance.Instance++
	otherMethod.Method += "s"
	otherArguments.Arguments = "namespaces/b"
	for name, text := range map[string]string{
		"empty":           "",
		"another number":  format.Encode(1),
		"another process": otherInstance.Encode(1, 2),
		"another method":  otherMethod.Encode(1, 2),
		"other arguments": otherArguments.Encode(1, 2),
		"changed":         strings.Replace(token, token[20:21], string(token[20]^1), 1),
		"cut":             token[:len(token)-4],
		"no base64":       "!" + token[1:],
	} {
		if got, err := format.Parse(text, 2); !errors.Is(err, resumetoken.ErrExpired) {
			t.Errorf("%s: Parse() = %v, %v, want ErrExpired", name, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(format.Encode(1, 2))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		revisions, err := format.Parse(text, 2)
		if err == nil && format.Encode(revisions...) != text && !strings.ContainsAny(text, "\r\n") {
			t.Errorf("Parse(%q) accepts a text that Encode does not make", text)
		}
	})
}

func TestErrExpired_IsACompleteRPCError(t *testing.T) {
	if got := rpcerror.ReasonOf(resumetoken.ErrExpired); got != rpcerror.ResumeTokenExpiredReason {
		t.Errorf("reason = %q", got)
	}
}
