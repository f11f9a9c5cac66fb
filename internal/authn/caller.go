package authn

import (
	"context"
	"slices"
	"time"
)

// Names and groups that Kubernetes gives to callers.
const (
	AnonymousUser        = "system:anonymous"
	UnauthenticatedGroup = "system:unauthenticated"
	AuthenticatedGroup   = "system:authenticated"
	NodesGroup           = "system:nodes"
	NodeUserPrefix       = "system:node:"
)

// User is an identity as Kubernetes describes one. It is immutable.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Anonymous returns the identity of a caller without credentials.
func Anonymous() User {
	return User{Name: AnonymousUser, Groups: []string{UnauthenticatedGroup}}
}

// In says whether the user is in a group.
func (u User) In(group string) bool { return slices.Contains(u.Groups, group) }

// Credential is how a peer has proved its identity.
type Credential uint8

const (
	// None is the credential of an anonymous peer.
	None Credential = iota
	// Certificate is a client certificate that was verified in the TLS handshake.
	Certificate
	// Token is a bearer token that kube-apiserver has reviewed.
	Token
)

// Role is what the certificate of a peer makes it, besides a user.
type Role uint8

const (
	// Client is any peer that is not a process of Trivet.
	Client Role = iota
	// Gateway may call on behalf of others.
	Gateway
	// Server is a replica of a service. It may forward heartbeats.
	Server
)

// Caller is the origin of one call. It is immutable.
type Caller struct {
	// User is the identity on whose behalf the call is made.
	User User
	// Peer is the identity that made the connection. It differs from User if a gateway forwards.
	Peer User
	// Credential and Role are those of the peer.
	Credential Credential
	Role       Role
	// Forwarded says that a gateway names User. Gateway is the id of its replica.
	Forwarded bool
	Gateway   string
	// Address is the network address of the peer.
	Address string
	// Expires is the end of the certificate, by the monotonic clock: a later step of the wall clock
	// changes nothing. It is zero without a certificate.
	Expires time.Time
	// Recheck reviews the credential of a long stream again, at most every RecheckPeriod. It is nil
	// for a credential that needs no review: one that is valid until Expires.
	Recheck func(context.Context) error
	// Stale says that the token could not be reviewed again, because the kube-apiserver does not
	// answer. The caller may read, but not change anything by a right.
	Stale bool
	// Unchecked says that the server authorizes nothing, because it serves loopback with
	// --insecure.
	Unchecked bool
}

// Anonymous says whether the identity of the caller is unknown.
func (c Caller) Anonymous() bool { return c.User.Name == AnonymousUser || c.User.Name == "" }

// IsPeer says whether a server or gateway calls for itself.
func (c Caller) IsPeer(roles ...Role) bool { return !c.Forwarded && slices.Contains(roles, c.Role) }

type callerKey struct{}

// NewContext returns a context with the caller of a call.
func NewContext(ctx context.Context, caller *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// InContext returns the caller of a call; false before it is known.
func InContext(ctx context.Context) (*Caller, bool) {
	caller, known := ctx.Value(callerKey{}).(*Caller)
	return caller, known
}

// FromContext returns the caller of a call. Without one, it returns an anonymous caller.
func FromContext(ctx context.Context) *Caller {
	if caller, known := InContext(ctx); known {
		return caller
	}
	return &Caller{User: Anonymous(), Peer: Anonymous()}
}
