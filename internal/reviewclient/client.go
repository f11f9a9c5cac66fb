// Package reviewclient creates TokenReviews and SubjectAccessReviews at a kube-apiserver. Package
// review has the cache of their answers; it does not link client-go.
package reviewclient

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Clients create reviews at a kube-apiserver. They know the two types of reviews only: client-go's
// typed clients would link the types of all APIs into every program.
type Clients struct {
	Tokens Client[authenticationv1.TokenReview, *authenticationv1.TokenReview]
	Access Client[authorizationv1.SubjectAccessReview, *authorizationv1.SubjectAccessReview]
}

// Client creates reviews of one type. It is safe for concurrent use.
type Client[T any, P interface {
	*T
	runtime.Object
}] struct {
	rest     rest.Interface
	resource string
}

// NewClients contacts no server.
func NewClients(config *rest.Config) (Clients, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for errors
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return Clients{}, fmt.Errorf("types of reviews: %w", err)
		}
	}
	clientOf := func(version schema.GroupVersion) (rest.Interface, error) {
		of := rest.CopyConfig(config)
		of.APIPath, of.GroupVersion = "/apis", &version
		of.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		return rest.RESTClientFor(of)
	}
	tokens, err := clientOf(authenticationv1.SchemeGroupVersion)
	if err != nil {
		return Clients{}, fmt.Errorf("make client of token reviews: %w", err)
	}
	access, err := clientOf(authorizationv1.SchemeGroupVersion)
	if err != nil {
		return Clients{}, fmt.Errorf("make client of access reviews: %w", err)
	}
	return Clients{
		Tokens: Client[authenticationv1.TokenReview, *authenticationv1.TokenReview]{rest: tokens, resource: "tokenreviews"},
		Access: Client[authorizationv1.SubjectAccessReview, *authorizationv1.SubjectAccessReview]{rest: access, resource: "subjectaccessreviews"},
	}, nil
}

// Create sends a review and returns it with its status. A review has no options of creation.
func (c Client[T, P]) Create(ctx context.Context, review P, _ metav1.CreateOptions) (P, error) {
	reviewed := P(new(T))
	err := c.rest.Post().Resource(c.resource).Body(review).Do(ctx).Into(reviewed)
	return reviewed, err
}
