package authn

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/review"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// DefaultTokenAudience is in the audiences of tokens for Trivet.
const DefaultTokenAudience = "trivet"

// TokenReviewClient creates TokenReviews, as client-go's clients and review.Clients do.
type TokenReviewClient interface {
	Create(context.Context, *authenticationv1.TokenReview, metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// TokensConfig configures Tokens.
type TokensConfig struct {
	Client TokenReviewClient
	// Audiences are asked for; a token needs one of them.
	Audiences []string
	Metrics   *review.Metrics
	// Admit returns why a token of this address that is not known to be valid may not be reviewed
	// now, or what to call after its review, with whether the token is valid; nil admits all.
	// Random tokens would be load on the kube-apiserver. The tokens of many nodes may have one
	// address, so valid ones should not count.
	Admit func(address string) (release func(valid bool), err error)
}

// Tokens reviews bearer tokens by TokenReview. It keeps no token: its cache knows a keyed hash.
type Tokens struct {
	client    TokenReviewClient
	audiences []string
	admit     func(address string) (release func(valid bool), err error)
	cache     *review.Cache[tokenAnswer]
	keys      *review.Keys
}

// tokenAnswer is a user, or why there is none.
type tokenAnswer struct {
	user    User
	refused string
}

// NewTokens returns a reviewer. It contacts no server.
func NewTokens(cfg TokensConfig) *Tokens {
	return &Tokens{
		client: cfg.Client, audiences: slices.Clone(cfg.Audiences), admit: cfg.Admit,
		cache: review.NewCache[tokenAnswer](cfg.Metrics, "token"), keys: review.NewKeys(),
	}
}

// Close ends the reviews in progress.
func (t *Tokens) Close() { t.cache.Close() }

// Review returns the user of a token.
func (t *Tokens) Review(ctx context.Context, token, address string) (TokenUser, error) {
	if token == "" {
		return TokenUser{}, NotAuthenticated("the bearer token is empty")
	}
	key := t.key(token)
	if known, found := t.cache.Fresh(key); found {
		return known.result(false)
	}
	answer, err := t.cache.Get(ctx, key, true, t.asks(token, address))
	if err != nil {
		return TokenUser{}, tokenUnavailable(err)
	}
	return answer.Value.result(answer.Stale)
}

// result returns the user of a valid token, or why there is none.
func (a tokenAnswer) result(stale bool) (TokenUser, error) {
	if a.refused != "" {
		return TokenUser{}, NotAuthenticated(a.refused)
	}
	return TokenUser{User: a.user, Stale: stale}, nil
}

// Recheck returns nil if a token is valid now. It uses an answer of the last two seconds, and no
// stale one.
func (t *Tokens) Recheck(ctx context.Context, token string) error {
	answer, err := t.cache.Renew(ctx, t.key(token), t.asks(token, ""))
	if err != nil {
		return tokenUnavailable(err)
	}
	_, err = answer.result(false)
	return err
}

func (t *Tokens) asks(token, address string) review.Ask[tokenAnswer] {
	return func(ctx context.Context, wasPositive bool) (answer tokenAnswer, valid bool, err error) {
		if t.admit != nil && !wasPositive {
			release, err := t.admit(address)
			if err != nil {
				return tokenAnswer{}, false, err
			}
			defer func() { release(valid) }()
		}
		answer, err = t.ask(ctx, token)
		return answer, err == nil && answer.refused == "", err
	}
}

func tokenUnavailable(err error) error {
	if errors.Is(err, context.Canceled) || rpcerror.ReasonOf(err) != "" {
		return err
	}
	return rpcerror.New(codes.Unavailable, rpcerror.AccessReviewUnavailableReason,
		fmt.Sprintf("the bearer token cannot be reviewed, because the kube-apiserver does not answer: %v; try again when it does", err))
}

// key needs no audiences: they are the same for all questions of the cache.
func (t *Tokens) key(token string) review.Key {
	question := t.keys.Question()
	question.Add(token)
	return question.Key()
}

// ask sends a TokenReview. Its error never contains the token.
func (t *Tokens) ask(ctx context.Context, token string) (tokenAnswer, error) {
	reviewed, err := t.client.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: t.audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return tokenAnswer{}, errors.New(strings.ReplaceAll(err.Error(), token, "<token>"))
	}
	// The kube-apiserver says why in the same field for an invalid token and for one that it could
	// not check. Both are refused.
	if !reviewed.Status.Authenticated {
		return tokenAnswer{refused: "the kube-apiserver does not accept the bearer token for the audiences " + strings.Join(t.audiences, ", ")}, nil
	}
	// An authenticator that knows no audiences returns none: its tokens are for the kube-apiserver.
	if !slices.ContainsFunc(reviewed.Status.Audiences, func(audience string) bool { return slices.Contains(t.audiences, audience) }) {
		return tokenAnswer{refused: "the bearer token is not for the audiences " + strings.Join(t.audiences, ", ")}, nil
	}
	if reviewed.Status.User.Username == "" {
		return tokenAnswer{refused: "the kube-apiserver names no user of the bearer token"}, nil
	}
	return tokenAnswer{user: userOf(reviewed.Status.User)}, nil
}

func userOf(info authenticationv1.UserInfo) User {
	user := User{Name: info.Username, UID: info.UID, Groups: info.Groups}
	if len(info.Extra) > 0 {
		user.Extra = make(map[string][]string, len(info.Extra))
		for key, values := range info.Extra {
			user.Extra[key] = values
		}
	}
	return user
}

// tokenStart begins each JSON Web Token: it is the encoded text `{"`. No name of Kubernetes has it.
const tokenStart = "eyJ"

var tokens = regexp.MustCompile(tokenStart + `[\w-]{8,}\.[\w-]{8,}(\.[\w-]*)?`)

// Redact replaces what looks like a token. A person may give one in the place of a name, and names
// are written to logs.
func Redact(text string) string {
	if !strings.Contains(text, tokenStart) {
		return text
	}
	return tokens.ReplaceAllLiteralString(text, "<token>")
}
