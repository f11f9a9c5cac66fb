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
