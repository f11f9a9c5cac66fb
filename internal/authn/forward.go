package authn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
)

// Metadata keys of a forwarded caller. Values are escaped as path segments are; a value of
// RemoteExtraKey is "key=value", each escaped. RemoteGatewayKey has the replica id of the gateway.
const (
	RemoteUserKey    = "x-remote-user"
	RemoteUIDKey     = "x-remote-uid"
	RemoteGroupKey   = "x-remote-group"
	RemoteExtraKey   = "x-remote-extra"
	RemoteGatewayKey = "x-remote-gateway"
)

func remoteKeys() []string {
	return []string{RemoteUserKey, RemoteUIDKey, RemoteGroupKey, RemoteExtraKey, RemoteGatewayKey}
}

// Forward returns the context of a call that a gateway makes on behalf of user.
func Forward(ctx context.Context, user User) context.Context {
	values := metadata.MD{RemoteUserKey: {escape(user.Name)}}
	if user.UID != "" {
		values.Append(RemoteUIDKey, escape(user.UID))
	}
	for _, group := range user.Groups {
		values.Append(RemoteGroupKey, escape(group))
	}
	for _, key := range slices.Sorted(maps.Keys(user.Extra)) {
		for _, value := range user.Extra[key] {
			values.Append(RemoteExtraKey, escape(key)+"="+escape(value))
		}
	}
	outgoing, _ := metadata.FromOutgoingContext(ctx)
	outgoing = outgoing.Copy()
	removeRemote(outgoing)
	return metadata.NewOutgoingContext(ctx, metadata.Join(outgoing, values))
}

// MaxForwardedBytes bounds the headers in which a gateway names an original caller: 500 groups of
// 64 bytes need half of it, or nearly all if each byte is escaped.
const MaxForwardedBytes = 120 << 10

// headerOverhead is what HTTP/2 counts for each header beside its name and value.
const headerOverhead = 32

// forwardedBytes returns the size of the headers of Forward.
func forwardedBytes(user *User) int {
	header := func(key string, values ...string) (size int) {
		size = len(key) + headerOverhead
		for _, value := range values {
			size += escapedBytes(value)
		}
		return size
	}
	size := header(RemoteUserKey, user.Name) + header(RemoteUIDKey, user.UID)
	for _, group := range user.Groups {
		size += header(RemoteGroupKey, group)
	}
	for key, values := range user.Extra {
		for _, value := range values {
			size += header(RemoteExtraKey, key, "=", value)
		}
	}
	return size
}

// escapedBytes returns at least the length of an escaped text.
func escapedBytes(text string) int {
	size := len(text)
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.', c == '~', c == ':':
		default:
			size += 2
		}
	}
	return size
}

// checkForwardable returns why a gateway could not name a user to the servers behind it, or nil.
func checkForwardable(user *User) error {
	size := forwardedBytes(user)
	if size <= MaxForwardedBytes {
		return nil
	}
	return NotAuthenticated(fmt.Sprintf("user %.100q has %d groups, and the headers that name the user and its groups have %d bytes; Trivet's servers take %d: use a credential with fewer groups",
		user.Name, len(user.Groups), size, MaxForwardedBytes))
}

// ForwardFrom is Forward, and names the replica of the gateway.
func ForwardFrom(ctx context.Context, replicaID string, user User) context.Context {
	return metadata.AppendToOutgoingContext(Forward(ctx, user), RemoteGatewayKey, escape(replicaID))
}

// NotForwarded returns the context of a call that a gateway makes for itself.
func NotForwarded(ctx context.Context) context.Context {
	outgoing, given := metadata.FromOutgoingContext(ctx)
	if !given {
		return ctx
	}
	outgoing = outgoing.Copy()
	removeRemote(outgoing)
	return metadata.NewOutgoingContext(ctx, outgoing)
}

// escape leaves only what a header may have. url.PathEscape leaves "=", which separates a key.
func escape(text string) string { return strings.ReplaceAll(url.PathEscape(text), "=", "%3D") }

func removeRemote(values metadata.MD) {
	for _, key := range remoteKeys() {
		values.Delete(key)
	}
}

// forwarded returns the original caller that a gateway names; false if it names none.
func forwarded(values func(key string) []string) (user User, named bool, err error) {
	names := values(RemoteUserKey)
	if len(names) == 0 {
		return User{}, false, nil
	}
	if len(names) > 1 {
		return User{}, true, errors.New("the gateway names more than one user")
	}
	if user.Name, err = url.PathUnescape(names[0]); err != nil || user.Name == "" {
		return User{}, true, fmt.Errorf("the gateway names the user %q, which cannot be read", names[0])
	}
	if uid := values(RemoteUIDKey); len(uid) > 0 {
		if user.UID, err = url.PathUnescape(uid[0]); err != nil {
			return User{}, true, fmt.Errorf("uid: %w", err)
		}
	}
	for _, escaped := range values(RemoteGroupKey) {
		group, err := url.PathUnescape(escaped)
		if err != nil {
			return User{}, true, fmt.Errorf("group: %w", err)
		}
		user.Groups = append(user.Groups, group)
	}
	for _, pair := range values(RemoteExtraKey) {
		escapedKey, escapedValue, _ := strings.Cut(pair, "=")
		key, keyErr := url.PathUnescape(escapedKey)
		value, valueErr := url.PathUnescape(escapedValue)
		if err := errors.Join(keyErr, valueErr); err != nil {
			return User{}, true, fmt.Errorf("extra: %w", err)
		}
		if user.Extra == nil {
			user.Extra = map[string][]string{}
		}
		user.Extra[key] = append(user.Extra[key], value)
	}
	return user, true, nil
}

// gatewayReplica returns the replica of the gateway that forwards, or "".
func gatewayReplica(values func(key string) []string) string {
	for _, escaped := range values(RemoteGatewayKey) {
		if id, err := url.PathUnescape(escaped); err == nil {
			return id
		}
	}
	return ""
}

// WithoutRemote returns a context whose incoming metadata names no original caller.
func WithoutRemote(ctx context.Context) context.Context {
	named := slices.ContainsFunc(remoteKeys(), func(key string) bool { return len(metadata.ValueFromIncomingContext(ctx, key)) > 0 })
	if !named {
		return ctx
	}
	incoming, _ := metadata.FromIncomingContext(ctx) // a copy
	removeRemote(incoming)
	return metadata.NewIncomingContext(ctx, incoming)
}
