package resources

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trivet-dev/trivet/internal/authn"
)

const (
	// tokenStart begins each token that a simulated kube-apiserver accepts. The rest is the user.
	tokenStart = "token-of-"
	// stranger begins the names of users that may do nothing.
	stranger = "stranger"
)

// reviews answers TokenReviews and SubjectAccessReviews.
type reviews struct {
	mu sync.Mutex     // guards of
	of map[string]int // reviews of both kinds, by user
}

func (a *reviews) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var user string
	switch review := object.(type) {
	case *authenticationv1.TokenReview:
		name, valid := strings.CutPrefix(review.Spec.Token, tokenStart)
		user = name
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: valid, Audiences: []string{authn.DefaultTokenAudience},
			User: authenticationv1.UserInfo{Username: name, UID: "uid-" + name, Groups: []string{"system:authenticated"}},
		}
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
	case *authorizationv1.SubjectAccessReview:
		user = review.Spec.User
		review.Status.Allowed = !strings.HasPrefix(user, stranger)
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SubjectAccessReview"
	default:
		http.Error(w, fmt.Sprintf("%T is no review", object), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.of[user]++
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(object) // the client may have left
}

// ofUsers returns the reviews of the users whose names have a prefix.
func (a *reviews) ofUsers(prefix string) (sum int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for user, n := range a.of {
		if strings.HasPrefix(user, prefix) {
			sum += n
		}
	}
	return sum
}
