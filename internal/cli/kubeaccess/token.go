package kubeaccess

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/cli/exit"
)

const (
	// audience is the audience of tokens for Trivet, the servers' default.
	audience = "trivet"
	// lifetime is the requested lifetime of a token; kube-apiserver may shorten it.
	lifetime = time.Hour
	// requestTimeout limits one request for a token.
	requestTimeout = 10 * time.Second
)

// ServiceAccount is a source of tokens of a ServiceAccount. It is safe for concurrent use.
type ServiceAccount struct {
	access          *Access
	namespace, name string

	mu      sync.Mutex // guards the fields below
	token   string
	renewAt time.Time // the token is replaced from then on
	expires time.Time
}

// ServiceAccount returns the source of tokens of a ServiceAccount NAMESPACE/NAME.
func (a *Access) ServiceAccount(namespacedName string) (*ServiceAccount, error) {
	namespace, name, err := ParseServiceAccount(namespacedName)
	if err != nil {
		return nil, err
	}
	return &ServiceAccount{access: a, namespace: namespace, name: name}, nil
}

// ParseServiceAccount splits NAMESPACE/NAME.
func ParseServiceAccount(namespacedName string) (namespace, name string, err error) {
	namespace, name, found := strings.Cut(namespacedName, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("--as-serviceaccount=%q: must be NAMESPACE/NAME", namespacedName)
	}
	return namespace, name, nil
}

// Token returns a valid token. It asks for a new one when four fifths of the lifetime have passed;
// if that fails, the old token is used until its end.
func (s *ServiceAccount) Token(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.renewAt) {
		return s.token, nil
	}
	if err := s.request(ctx, now); err != nil {
		if now.Before(s.expires) {
			return s.token, nil
		}
		return "", err
	}
	return s.token, nil
}

func (s *ServiceAccount) request(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	seconds := int64(lifetime / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds}}
	answer, err := s.access.Kube.CoreV1().ServiceAccounts(s.namespace).CreateToken(ctx, s.name, request, metav1.CreateOptions{})
	if err != nil {
		failed := &exit.Error{Code: exit.Undetermined, Err: fmt.Errorf("token of ServiceAccount %s/%s: %w", s.namespace, s.name, err)}
		if apierrors.IsForbidden(err) {
			failed.Try = fmt.Sprintf("ask for the right that `kubectl auth can-i create serviceaccounts/%s --subresource=token -n %s` checks", s.name, s.namespace)
		}
		return failed
	}
	s.token, s.expires = answer.Status.Token, answer.Status.ExpirationTimestamp.Time
	s.renewAt = now.Add(s.expires.Sub(now) * 4 / 5)
	return nil
}
