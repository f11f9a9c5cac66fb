package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// holdersResource is the resource whose update a class with class.RuleAccessReview needs.
	holdersResource = "holders"
	// Keys in which kube-apiserver names the node and the pod that a token is bound to.
	nodeNameExtra = "authentication.kubernetes.io/node-name"
	podNameExtra  = "authentication.kubernetes.io/pod-name"
	// unreviewedPause is when a holder may try again that kube-apiserver could not decide about.
	unreviewedPause = 5 * time.Second
	// maxOwnerBytes bounds the name of an identity that is stored with a session.
	maxOwnerBytes = 256
)

// access decides for which holders the caller of one message may beat. It decides about each item
// alone, and before anything is read of the session.
type access struct {
	server   *Server
	caller   *authn.Caller
	identity class.Identity
	// all says that the server authorizes nothing.
	all bool
	// reviews are the results for classes that kube-apiserver decides about: one for a message.
	reviews map[session.ClassID]error
	// refused counts the refused items; firstRefused is why the first of them was, with firstKey.
	refused      int
	firstRefused error
	firstKey     session.Key
	// further is why items after maxExplained are refused, and rejections are those that items of a
	// class share.
	further    error
	rejections map[session.ClassID]*leasev1.Rejection
}

// maxExplained is how many refused items of a message have a text of their own. The answer to a
// thousand would need many times the memory of the message.
const maxExplained = 16

func (s *Server) accessOf(caller *authn.Caller) *access {
	return &access{
		server: s, caller: caller, identity: identityOf(&caller.User), all: caller.Unchecked || s.Authorizer != nil && s.Authorizer.AllowsAll(),
	}
}

func identityOf(user *authn.User) class.Identity {
	return class.Identity{User: user.Name, Groups: user.Groups, Node: only(user.Extra[nodeNameExtra]), Pod: only(user.Extra[podNameExtra])}
}

// only returns the only value; empty if there is not exactly one.
func only(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// check returns nil if the caller may beat for a holder. The error is a status with
// NOT_AUTHORIZED, or ACCESS_REVIEW_UNAVAILABLE.
func (a *access) check(ctx context.Context, key session.Key) error {
	if a.all {
		return nil
	}
	err := a.decide(ctx, key)
	if err != nil {
		if a.refused++; a.refused == 1 {
			a.firstRefused, a.firstKey = err, key
		}
		a.server.metrics.notAuthorized.Inc()
	}
	return err
}

func (a *access) decide(ctx context.Context, key session.Key) error {
	if a.caller.Forwarded {
		return rpcerror.New(codes.PermissionDenied, rpcerror.NotAuthorizedReason, fmt.Sprintf(
			"user %q may not beat for holder %q of class %q through a gateway; beat over a connection of its own", a.identity.User, key.Name, a.server.Catalog.Get(key.Class).Name))
	}
	binding := a.server.Catalog.Binding(key.Class)
	if binding.Reviewed() {
		return a.review(ctx, key.Class)
	}
	if name, bound := binding.HolderOf(&a.identity); bound && name == key.Name {
		return nil
	}
	if a.refused >= maxExplained {
		if a.further == nil {
			a.further = rpcerror.New(codes.PermissionDenied, rpcerror.NotAuthorizedReason,
				fmt.Sprintf("user %q may not beat for this holder; the first refused items of the message name the identities that may", a.identity.User))
		}
		return a.further
	}
	return rpcerror.New(codes.PermissionDenied, rpcerror.NotAuthorizedReason,
		fmt.Sprintf("user %q may not beat for holder %q of class %q; only this may: %s",
			a.identity.User, key.Name, a.server.Catalog.Get(key.Class).Name, binding.Wanted(key.Name)))
}

// review asks kube-apiserver once for a message about all holders of a class.
func (a *access) review(ctx context.Context, id session.ClassID) error {
	if err, known := a.reviews[id]; known {
		return err
	}
	of := a.server.Catalog.Get(id)
	asked := authz.Attributes{Verb: "update", Resource: holdersResource, Namespace: of.Namespace, Name: of.Name}
	err := authz.NotAuthorized(a.caller.User, asked, "this server asks no kube-apiserver")
	if a.server.Authorizer != nil {
		err = a.server.reviews.result(a.caller, id, a.server.Authorizer.Authorize(ctx, a.caller, asked), time.Now())
	}
	if a.reviews == nil {
		a.reviews = map[session.ClassID]error{}
	}
	a.reviews[id] = err
	return err
}

// refuse returns the rejection of a holder; nil if the caller may beat for it.
func (a *access) refuse(ctx context.Context, key session.Key) *leasev1.Rejection {
	err := a.check(ctx, key)
	if err == nil {
		return nil
	}
	shared := a.refused > maxExplained
	if known := a.rejections[key.Class]; shared && known != nil {
		return known
	}
	rejection := &leasev1.Rejection{
		Reason: string(rpcerror.ReasonOf(err)), Code: code.Code(status.Code(err)), Message: status.Convert(err).Message(),
	}
	if status.Code(err) == codes.Unavailable {
		rejection.RetryAfter = durationpb.New(backoff.Jitter(2 * unreviewedPause))
	}
	if shared {
		if a.rejections == nil {
			a.rejections = map[session.ClassID]*leasev1.Rejection{}
		}
		a.rejections[key.Class] = rejection
	}
	return rejection
}

// ownerOf names the caller as the owner of a session that it opens; empty if the sessions of the
// class have no bound for each identity, because their number is that of Nodes or of identities.
func (s *Server) ownerOf(a *access, id session.ClassID) string {
	if a.all || !s.Catalog.Binding(id).Reviewed() || s.Catalog.Get(id).OwnedByNode {
		return ""
	}
	if name := a.identity.User; len(name) <= maxOwnerBytes {
		return name
	}
	sum := sha256.Sum256([]byte(a.identity.User))
	return hex.EncodeToString(sum[:])
}

const (
	// maxKeptReviews bounds the memory of allowed reviews.
	maxKeptReviews = 10_000
	// keptReviewAge is how long an allowed review counts while kube-apiserver cannot be asked.
	keptReviewAge = time.Hour
)

// keptReviews are the last allowed reviews. While kube-apiserver is away, a holder whose identity
// was allowed may return: otherwise its lease would expire, because a control plane is down. It is
// safe for concurrent use.
type keptReviews struct {
	mu      sync.Mutex // guards allowed
	allowed map[reviewKey]time.Time
}

type reviewKey struct {
	user  string // with its groups
	class session.ClassID
}

// result returns the result that counts for the answer of a review. A call that ends before its
// review decides nothing.
func (k *keptReviews) result(caller *authn.Caller, id session.ClassID, answer error, now time.Time) error {
	key := reviewKey{user: fmt.Sprintf("%q", append([]string{caller.User.Name}, caller.User.Groups...)), class: id}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case answer == nil:
		k.keep(key, now)
	case status.Code(answer) == codes.PermissionDenied || status.Code(answer) == codes.Unauthenticated:
		delete(k.allowed, key)
	case status.Code(answer) == codes.Unavailable && now.Sub(k.allowed[key]) < keptReviewAge:
		return nil
	}
	return answer
}

// keep replaces any other review if there are too many. The caller holds k.mu.
func (k *keptReviews) keep(key reviewKey, now time.Time) {
	if _, known := k.allowed[key]; !known && len(k.allowed) == maxKeptReviews {
		for other := range k.allowed {
			delete(k.allowed, other)
			break
		}
	}
	if k.allowed == nil {
		k.allowed = map[reviewKey]time.Time{}
	}
	k.allowed[key] = now
}
