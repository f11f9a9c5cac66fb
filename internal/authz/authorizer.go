package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Group is the API group of the resources.
const Group = "trivet.dev"

// Attributes are what a caller asks for: a verb on a resource, or on a path.
type Attributes struct {
	// Verb is get, list, watch, create or update.
	Verb string
	// Resource is the plural, for example "nodes". Name is empty for a collection, Namespace for
	// all namespaces and for what has none.
	Resource, Namespace, Name string
	// Path is set instead of Resource for HTTP without an object, for example "/metrics".
	Path string
}

// IsRead says whether the verb changes nothing.
func (a Attributes) IsRead() bool { return slices.Contains([]string{"get", "list", "watch"}, a.Verb) }

// Decision is the result of a review. Reason may be empty.
type Decision struct {
	Allowed bool
	Reason  string
}

// Reviewer asks whether a user may do something. It is safe for concurrent use. An error means that
// there is no decision.
type Reviewer interface {
	Review(ctx context.Context, user authn.User, asked Attributes) (Decision, error)
}

// Authorizer decides about callers. It is safe for concurrent use.
type Authorizer struct{ reviewer Reviewer }

// New returns an Authorizer. A nil reviewer allows everything.
func New(reviewer Reviewer) *Authorizer { return &Authorizer{reviewer: reviewer} }

// AllowsAll says whether everything is allowed to every caller.
func (z *Authorizer) AllowsAll() bool { return z.reviewer == nil }

// Authorize returns nil if the caller may do what it asks for. The error is a gRPC status:
// NOT_AUTHENTICATED, NOT_AUTHORIZED, or ACCESS_REVIEW_UNAVAILABLE. It says nothing about whether
// the object exists.
func (z *Authorizer) Authorize(ctx context.Context, caller *authn.Caller, asked Attributes) error {
	if caller.Unchecked || z.reviewer == nil || asked.IsRead() && caller.IsPeer(authn.Gateway, authn.Server) {
		return nil
	}
	if caller.Anonymous() {
		return authn.NotAuthenticated("this call needs a client certificate or a bearer token")
	}
	if caller.Stale && !asked.IsRead() {
		return unavailable(caller.User, asked, errStaleToken)
	}
	decision, err := z.reviewer.Review(ctx, caller.User, asked)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return unavailable(caller.User, asked, err)
	}
	if !decision.Allowed {
		return NotAuthorized(caller.User, asked, decision.Reason)
	}
	return nil
}

var errStaleToken = errors.New("the bearer token could not be reviewed again")

func unavailable(user authn.User, asked Attributes, err error) error {
	return rpcerror.New(codes.Unavailable, rpcerror.AccessReviewUnavailableReason,
		fmt.Sprintf("whether user %q may %s is not known, because the kube-apiserver does not answer the review: %v; try again when it does", user.Name, asked, err))
}

// NotAuthorized returns the status of a refused call, with the command that shows the refusal.
func NotAuthorized(user authn.User, asked Attributes, reason string) error {
	text := fmt.Sprintf("user %q may not %s", user.Name, asked)
	if reason != "" {
		text += ": " + reason
	}
	return rpcerror.New(codes.PermissionDenied, rpcerror.NotAuthorizedReason, text+"; see: "+asked.canI(user))
}

// String is the right in words: "get nodes.trivet.dev "a" in namespace "b"".
func (a Attributes) String() string {
	if a.Path != "" {
		return fmt.Sprintf("%s the path %q", a.Verb, a.Path)
	}
	text := a.Verb + " " + a.Resource + "." + Group
	if a.Name != "" {
		text += fmt.Sprintf(" %q", a.Name)
	}
	if a.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", a.Namespace)
	}
	return text
}

// canI is the command that asks kube-apiserver the same question.
func (a Attributes) canI(user authn.User) string {
	words := []string{"kubectl auth can-i", a.Verb}
	if a.Path != "" {
		words = append(words, quote(a.Path))
	} else if a.Name != "" {
		words = append(words, quote(a.Resource+"."+Group+"/"+a.Name))
	} else {
		words = append(words, quote(a.Resource+"."+Group))
	}
	if a.Namespace != "" {
		words = append(words, "-n", quote(a.Namespace))
	} else if a.Path == "" {
		words = append(words, "-A")
	}
	words = append(words, "--as", quote(user.Name))
	for i, group := range user.Groups {
		if i == maxGroupsShown {
			words = append(words, fmt.Sprintf("and --as-group of %d more groups", len(user.Groups)-i))
			break
		}
		words = append(words, "--as-group", quote(group))
	}
	return strings.Join(words, " ")
}

// maxGroupsShown bounds the text of an error: an answer may have it for each of many items.
const maxGroupsShown = 20

// quote returns a word of a shell's command line. Names come from callers.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	if !utf8.ValidString(word) || strings.IndexFunc(word, func(r rune) bool { return !strconv.IsPrint(r) }) >= 0 {
		// Control characters would reach a terminal. $'…' has the escapes of Go's strings.
		escaped := strconv.Quote(word)
		return "$'" + strings.ReplaceAll(escaped[1:len(escaped)-1], "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
