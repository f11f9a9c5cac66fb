package authz_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/review"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// reviews answers each SubjectAccessReview by decide, and keeps what was asked.
func reviews(t testing.TB, decide func(authorizationv1.SubjectAccessReviewSpec) (allowed bool, err error)) (*authz.AccessReviews, *[]authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	kube := fake.NewClientset()
	asked := &[]authorizationv1.SubjectAccessReviewSpec{}
	kube.PrependReactor("create", "subjectaccessreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(kubetesting.CreateAction)
		sent, _ := create.GetObject().(*authorizationv1.SubjectAccessReview)
		*asked = append(*asked, sent.Spec)
		reply := sent.DeepCopy()
		var err error
		reply.Status.Allowed, err = decide(sent.Spec)
		return true, reply, err
	})
	metrics, err := review.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	made := authz.NewAccessReviews(kube.AuthorizationV1().SubjectAccessReviews(), metrics)
	t.Cleanup(made.Close)
	return made, asked
}

func allow(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return true, nil }

func TestReview_DifferentQuestionsAreAskedApart(t *testing.T) {
	nodes := authz.Attributes{Verb: "get", Resource: "nodes", Name: "a"}
	user := authn.User{Name: "ann", Groups: []string{"g", "h"}, Extra: map[string][]string{"k": {"v", "w"}, "l": {"x"}}}
	for name, c := range map[string]struct {
		user  authn.User
		asked authz.Attributes
		same  bool
	}{
		"the same":                      {user, nodes, true},
		"groups in another order":       {authn.User{Name: "ann", Groups: []string{"h", "g"}, Extra: user.Extra}, nodes, true},
		"values in another order":       {authn.User{Name: "ann", Groups: user.Groups, Extra: map[string][]string{"k": {"w", "v"}, "l": {"x"}}}, nodes, true},
		"a group less":                  {authn.User{Name: "ann", Groups: []string{"g"}, Extra: user.Extra}, nodes, false},
		"two groups as one":             {authn.User{Name: "ann", Groups: []string{"g\x01h"}, Extra: user.Extra}, nodes, false},
		"a group that is an extra":      {authn.User{Name: "ann", Groups: []string{"g", "h", "k"}, Extra: map[string][]string{"l": {"x"}}}, nodes, false},
		"a value of another key":        {authn.User{Name: "ann", Groups: user.Groups, Extra: map[string][]string{"k": {"v"}, "l": {"w", "x"}}}, nodes, false},
		"another UID":                   {authn.User{Name: "ann", UID: "2", Groups: user.Groups, Extra: user.Extra}, nodes, false},
		"another user":                  {authn.User{Name: "an", Groups: user.Groups, Extra: user.Extra}, nodes, false},
		"another verb":                  {user, authz.Attributes{Verb: "list", Resource: "nodes", Name: "a"}, false},
		"a name that is a namespace":    {user, authz.Attributes{Verb: "get", Resource: "nodes", Namespace: "a"}, false},
		"a resource with a longer name": {user, authz.Attributes{Verb: "get", Resource: "nodesa"}, false},
		"a path":                        {user, authz.Attributes{Verb: "get", Path: "nodes"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			reviewer, asked := reviews(t, allow)
			for _, ask := range []struct {
				user  authn.User
				asked authz.Attributes
			}{{user, nodes}, {c.user, c.asked}} {
				if decision, err := reviewer.Review(t.Context(), ask.user, ask.asked); err != nil || !decision.Allowed {
					t.Fatalf("Review() = %+v, %v", decision, err)
				}
			}
			if got := len(*asked); (got == 1) != c.same {
				t.Errorf("%d reviews, want the same question: %t", got, c.same)
			}
		})
	}
}

func TestAuthorize_AsksForOthersOnly(t *testing.T) {
	read, change := authz.Attributes{Verb: "list", Resource: "leases"}, authz.Attributes{Verb: "create", Resource: "repairs", Name: "r"}
	ann := authn.User{Name: "ann", Groups: []string{"g"}}
	denied := func(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return false, nil }
	away := func(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return false, errors.New("refused") }
	for name, c := range map[string]struct {
		caller authn.Caller
		asked  authz.Attributes
		decide func(authorizationv1.SubjectAccessReviewSpec) (bool, error)
		code   codes.Code
		asks   int
	}{
		"allowed":                       {authn.Caller{User: ann}, read, allow, codes.OK, 1},
		"denied":                        {authn.Caller{User: ann}, read, denied, codes.PermissionDenied, 1},
		"unknown":                       {authn.Caller{User: ann}, read, away, codes.Unavailable, 1},
		"anonymous":                     {authn.Caller{User: authn.Anonymous()}, read, allow, codes.Unauthenticated, 0},
		"without a name":                {authn.Caller{}, read, allow, codes.Unauthenticated, 0},
		"unchecked":                     {authn.Caller{Unchecked: true}, change, denied, codes.OK, 0},
		"gateway reads for itself":      {authn.Caller{User: ann, Role: authn.Gateway}, read, denied, codes.OK, 0},
		"server reads for itself":       {authn.Caller{User: ann, Role: authn.Server}, read, denied, codes.OK, 0},
		"gateway changes for itself":    {authn.Caller{User: ann, Role: authn.Gateway}, change, denied, codes.PermissionDenied, 1},
		"gateway reads for others":      {authn.Caller{User: ann, Role: authn.Gateway, Forwarded: true}, read, denied, codes.PermissionDenied, 1},
		"a stale token reads":           {authn.Caller{User: ann, Stale: true}, read, allow, codes.OK, 1},
		"a stale token changes nothing": {authn.Caller{User: ann, Stale: true}, change, allow, codes.Unavailable, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reviewer, asked := reviews(t, c.decide)
			err := authz.New(reviewer).Authorize(t.Context(), &c.caller, c.asked)
			if status.Code(err) != c.code || len(*asked) != c.asks {
				t.Errorf("Authorize() = %v after %d reviews, want %v after %d", err, len(*asked), c.code, c.asks)
			}
		})
	}
}

func TestReview_AsksWhatTheCallerAsks(t *testing.T) {
	reviewer, asked := reviews(t, allow)
	user := authn.User{Name: "ann", UID: "u", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}
	for _, attributes := range []authz.Attributes{
		{Verb: "get", Resource: "serviceslices", Namespace: "n", Name: "s"}, {Verb: "get", Path: "/metrics"},
	} {
		if _, err := reviewer.Review(t.Context(), user, attributes); err != nil {
			t.Fatal(err)
		}
	}
	object, path := (*asked)[0], (*asked)[1]
	if got := object.ResourceAttributes; got == nil || got.Group != "trivet.dev" || got.Resource != "serviceslices" || got.Namespace != "n" || got.Name != "s" || got.Verb != "get" {
		t.Errorf("resource attributes = %v", got)
	}
	if got := path.NonResourceAttributes; got == nil || got.Path != "/metrics" || got.Verb != "get" || path.ResourceAttributes != nil {
		t.Errorf("attributes of a path = %v", got)
	}
	if object.User != "ann" || object.UID != "u" || len(object.Groups) != 1 || len(object.Extra["k"]) != 1 {
		t.Errorf("user = %+v", object)
	}
}

func TestNotAuthorized_HasTheCommandThatShowsIt(t *testing.T) {
	user := authn.User{Name: "o'neil $(reboot)", Groups: []string{"a b", "system:authenticated"}}
	for want, asked := range map[string]authz.Attributes{
		`kubectl auth can-i get nodes.trivet.dev/a -A --as 'o'\''neil $(reboot)' --as-group 'a b' --as-group system:authenticated`:          {Verb: "get", Resource: "nodes", Name: "a"},
		`kubectl auth can-i list leases.trivet.dev -n n --as 'o'\''neil $(reboot)' --as-group 'a b' --as-group system:authenticated`:        {Verb: "list", Resource: "leases", Namespace: "n"},
		`kubectl auth can-i get /metrics --as 'o'\''neil $(reboot)' --as-group 'a b' --as-group system:authenticated`:                       {Verb: "get", Path: "/metrics"},
		`kubectl auth can-i get 'nodes.trivet.dev/a;reboot' -A --as 'o'\''neil $(reboot)' --as-group 'a b' --as-group system:authenticated`: {Verb: "get", Resource: "nodes", Name: "a;reboot"},
		`kubectl auth can-i get $'/a\x00\x1b[2J\'\u202e' --as 'o'\''neil $(reboot)' --as-group 'a b' --as-group system:authenticated`:       {Verb: "get", Path: "/a\x00\x1b[2J'\u202e"},
	} {
		err := authz.NotAuthorized(user, asked, "no rule")
		if rpcerror.ReasonOf(err) != rpcerror.NotAuthorizedReason || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("NotAuthorized() = %v, want it to end with %s", err, want)
		}
	}
}

func BenchmarkAuthorize_KeptDecision(b *testing.B) {
	reviewer, _ := reviews(b, allow)
	authorizer := authz.New(reviewer)
	caller := &authn.Caller{User: authn.User{Name: "system:serviceaccount:trivet-system:reader", UID: "3a1e", Groups: []string{
		"system:serviceaccounts", "system:serviceaccounts:trivet-system", "system:authenticated",
	}}}
	asked := authz.Attributes{Verb: "get", Resource: "serviceslices", Namespace: "default", Name: "web"}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := authorizer.Authorize(ctx, caller, asked); err != nil {
			b.Fatal(err)
		}
	}
}
