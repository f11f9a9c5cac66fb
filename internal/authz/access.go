package authz

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/review"
)

// AccessReviewClient creates SubjectAccessReviews, as client-go's clients and review.Clients do.
type AccessReviewClient interface {
	Create(context.Context, *authorizationv1.SubjectAccessReview, metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// AccessReviews decides by SubjectAccessReview. It is a Reviewer.
type AccessReviews struct {
	client AccessReviewClient
	cache  *review.Cache[Decision]
	keys   *review.Keys
}

var _ Reviewer = (*AccessReviews)(nil)

// NewAccessReviews returns a reviewer. It contacts no server.
func NewAccessReviews(client AccessReviewClient, metrics *review.Metrics) *AccessReviews {
	return &AccessReviews{client: client, cache: review.NewCache[Decision](metrics, "access"), keys: review.NewKeys()}
}

// Close ends the reviews in progress.
func (a *AccessReviews) Close() { a.cache.Close() }

// Review returns whether the user may do what it asks for. While no kube-apiserver answers, a read
// that was allowed stays allowed for some minutes.
func (a *AccessReviews) Review(ctx context.Context, user authn.User, asked Attributes) (Decision, error) {
	key := a.key(user, asked)
	if decision, found := a.cache.Fresh(key); found {
		return decision, nil
	}
	return a.review(ctx, key, user, asked)
}

func (a *AccessReviews) review(ctx context.Context, key review.Key, user authn.User, asked Attributes) (Decision, error) {
	answer, err := a.cache.Get(ctx, key, asked.IsRead(), func(ctx context.Context, _ bool) (Decision, bool, error) {
		decision, err := a.ask(ctx, user, asked)
		return decision, decision.Allowed, err
	})
	return answer.Value, err
}

func (a *AccessReviews) ask(ctx context.Context, user authn.User, asked Attributes) (Decision, error) {
	reviewed, err := a.client.Create(ctx, reviewOf(user, asked), metav1.CreateOptions{})
	if err != nil {
		return Decision{}, err
	}
	return Decision{Allowed: reviewed.Status.Allowed && !reviewed.Status.Denied, Reason: reviewed.Status.Reason}, nil
}

func reviewOf(user authn.User, asked Attributes) *authorizationv1.SubjectAccessReview {
	spec := authorizationv1.SubjectAccessReviewSpec{User: user.Name, UID: user.UID, Groups: user.Groups}
	if len(user.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(user.Extra))
		for key, values := range user.Extra {
			spec.Extra[key] = values
		}
	}
	if asked.Path != "" {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: asked.Path, Verb: asked.Verb}
	} else {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Group: Group, Version: "*", Resource: asked.Resource, Verb: asked.Verb, Namespace: asked.Namespace, Name: asked.Name,
		}
	}
	return &authorizationv1.SubjectAccessReview{Spec: spec}
}

// key identifies a question. The order of groups and of extra keys does not matter.
func (a *AccessReviews) key(user authn.User, asked Attributes) review.Key {
	question := a.keys.Question()
	for _, part := range [...]string{asked.Verb, asked.Resource, asked.Namespace, asked.Name, asked.Path, user.Name, user.UID} {
		question.Add(part)
	}
	question.AddSorted(user.Groups)
	question.Number(len(user.Extra))
	var few [8]extra // on the stack
	for _, of := range sortedExtra(user.Extra, few[:0]) {
		question.Add(of.key)
		question.AddSorted(of.values)
	}
	return question.KeyOf(user.Name)
}

// extra is one entry of User.Extra.
type extra struct {
	key    string
	values []string
}

// sortedExtra appends the entries to into, ordered by key.
func sortedExtra(of map[string][]string, into []extra) []extra {
	for key, values := range of {
		into = append(into, extra{key, values})
	}
	slices.SortFunc(into, func(a, b extra) int { return strings.Compare(a.key, b.key) })
	return into
}
