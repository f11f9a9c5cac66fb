package authz

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

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
}

var _ Reviewer = (*AccessReviews)(nil)

// NewAccessReviews returns a reviewer. It contacts no server.
func NewAccessReviews(client AccessReviewClient, metrics *review.Metrics) *AccessReviews {
	return &AccessReviews{client: client, cache: review.NewCache[Decision](metrics, "access")}
}

// Close ends the reviews in progress.
func (a *AccessReviews) Close() { a.cache.Close() }

// Review returns whether the user may do what it asks for. While no kube-apiserver answers, a read
// that was allowed stays allowed for some minutes.
func (a *AccessReviews) Review(ctx context.Context, user authn.User, asked Attributes) (Decision, error) {
	key := keyOf(user, asked)
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

// keyOf identifies a question. Each part is preceded by its length, and each list by its number of
// parts, so that no two questions are written alike. The order of groups and of extra keys does not
// matter.
func keyOf(user authn.User, asked Attributes) review.Key {
	text := make(parts, 0, 512)
	for _, part := range []string{asked.Verb, asked.Resource, asked.Namespace, asked.Name, asked.Path, user.Name, user.UID} {
		text = text.add(part)
	}
	text = text.addSorted(user.Groups)
	text = text.number(len(user.Extra))
	for _, key := range slices.Sorted(maps.Keys(user.Extra)) {
		text = text.add(key).addSorted(user.Extra[key])
	}
	return review.KeyOf(sha256.Sum256([]byte(user.Name)), sha256.Sum256(text))
}

// parts is the text of a question.
type parts []byte

func (p parts) number(n int) parts { return binary.AppendUvarint(p, uint64(n)) }

func (p parts) add(part string) parts { return append(p.number(len(part)), part...) }

func (p parts) addSorted(list []string) parts {
	p = p.number(len(list))
	if !slices.IsSorted(list) {
		list = slices.Clone(list)
		slices.Sort(list)
	}
	for _, part := range list {
		p = p.add(part)
	}
	return p
}
