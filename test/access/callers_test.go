package access

import (
	"context"
	"log/slog"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

const (
	ownNode   = "node-own" // the node of all heartbeats of this test
	otherNode = "node-other"
)

// caller is a column of the table: credentials, and what they may do.
type caller struct {
	name     string
	right    right
	files    func(testing.TB, *world) rpcclient.Config
	metadata func(testing.TB, *world) metadata.MD
	// user and groups are those of a certificate or of a forwarded user.
	user   string
	groups []string
}

// forwardable are the users that the gateway forwards, and that others claim to be.
var forwardable = []caller{
	certificate("stranger", nothing, "stranger"),
	certificate("other node", otherNodes, "system:node:"+otherNode, "system:nodes"),
	certificate("own node", ownNodes, "system:node:"+ownNode, "system:nodes"),
	certificate("user with the name of the own node", nothing, "system:node:"+ownNode),
	certificate("viewer", reads, "viewer"),
	certificate("operator", operates, "operator"),
	certificate("tenant", tenantReads, "tenant"),
	certificate("admin", everything, "admin", "system:masters"),
}

// callers returns all columns.
func callers() []caller {
	all := append([]caller{
		{name: "no certificate", right: unknown, files: withoutCertificate},
		{name: "no certificate claims to forward an admin", right: unknown, files: withoutCertificate, metadata: forwarding("admin", "system:masters")},
		token("agent token of the own node", ownNodes, ownNode, audience),
		token("agent token of the other node", otherNodes, otherNode, audience),
		token("agent token of another audience", unknown, ownNode, "https://kubernetes.default.svc.cluster.local"),
		{name: "broken token", right: unknown, files: withoutCertificate, metadata: bearer("broken")},
		certificate("server", serves, "trivet:leasesvc", certs.ServerGroup),
		certificate("gateway", peerReads, "trivet:gateway", certs.GatewayGroup),
		foreign("gateway of another authority", "trivet:gateway", certs.GatewayGroup),
		foreign("server of another authority", "trivet:leasesvc", certs.ServerGroup),
	}, forwardable...)
	for _, user := range forwardable {
		right := user.right
		if right == ownNodes || right == otherNodes {
			right = nothing // a node beats over a connection of its own
		}
		forwarded := certificate("gateway forwards "+user.name, right, "trivet:gateway", certs.GatewayGroup)
		forwarded.metadata, forwarded.user, forwarded.groups = forwarding(user.user, user.groups...), user.user, user.groups
		all = append(all, forwarded)
	}
	for _, claim := range []struct {
		by   caller
		user string
		in   []string
	}{
		{certificate("stranger claims to forward an admin", nothing, "stranger"), "admin", []string{"system:masters"}},
		{certificate("own node claims to forward an admin", ownNodes, "system:node:"+ownNode, "system:nodes"), "admin", []string{"system:masters"}},
		{certificate("other node claims to forward the own node", otherNodes, "system:node:"+otherNode, "system:nodes"), "system:node:" + ownNode, []string{"system:nodes"}},
		{certificate("server claims to forward an admin", serves, "trivet:leasesvc", certs.ServerGroup), "admin", []string{"system:masters"}},
		{foreign("gateway of another authority claims to forward an admin", "trivet:gateway", certs.GatewayGroup), "admin", []string{"system:masters"}},
		{token("agent token of the own node claims to forward an admin", ownNodes, ownNode, audience), "admin", []string{"system:masters"}},
	} {
		own := claim.by.metadata
		claim.by.metadata = func(t testing.TB, w *world) metadata.MD {
			joined := forwarding(claim.user, claim.in...)(t, w)
			if own != nil {
				joined = metadata.Join(joined, own(t, w))
			}
			return joined
		}
		all = append(all, claim.by)
	}
	// A gateway that forwards a server or an anonymous caller gives them no rights of peers.
	asServer := certificate("gateway forwards a server", nothing, "trivet:gateway", certs.GatewayGroup)
	asServer.metadata, asServer.user, asServer.groups = forwarding("trivet:leasesvc", certs.ServerGroup), "trivet:leasesvc", []string{certs.ServerGroup}
	asAnonymous := certificate("gateway forwards an anonymous caller", unknown, "trivet:gateway", certs.GatewayGroup)
	asAnonymous.metadata = forwarding("system:anonymous", "system:unauthenticated")
	return append(all, asServer, asAnonymous)
}

func withoutCertificate(_ testing.TB, w *world) rpcclient.Config {
	config := rpcclient.Config{}
	config.TLS.CAFile = w.ownFile
	return config
}

func certificate(name string, may right, user string, groups ...string) caller {
	return caller{name: name, right: may, user: user, groups: groups, files: func(t testing.TB, w *world) rpcclient.Config {
		return rpcclient.Config{TLS: w.files(t, w.own, certs.ClientLeaf(user, groups...), w.ownFile)}
	}}
}

// foreign is a caller whose certificate another trusted authority has signed. The groups of peers
// do not count in it.
func foreign(name, user string, groups ...string) caller {
	return caller{name: name, right: nothing, user: user, files: func(t testing.TB, w *world) rpcclient.Config {
		return rpcclient.Config{TLS: w.files(t, w.foreign, certs.ClientLeaf(user, groups...), w.ownFile)}
	}}
}

func token(name string, may right, node, forAudience string) caller {
	return caller{name: name, right: may, files: withoutCertificate, metadata: func(t testing.TB, w *world) metadata.MD {
		return metadata.Pairs("authorization", "Bearer "+w.agentToken(t, node, forAudience))
	}}
}

func bearer(text string) func(testing.TB, *world) metadata.MD {
	return func(testing.TB, *world) metadata.MD { return metadata.Pairs("authorization", "Bearer "+text) }
}

// forwarding returns the metadata in which a gateway names the original caller.
func forwarding(user string, groups ...string) func(testing.TB, *world) metadata.MD {
	return func(testing.TB, *world) metadata.MD {
		named := metadata.Pairs("x-remote-user", user)
		named.Append("x-remote-group", groups...)
		return named
	}
}

// connected is a caller with its connections to all servers.
type connected struct {
	caller
	ctx   context.Context
	conns map[string]*grpc.ClientConn
	// resets has the pace at which streams may end before their server ends them: a server closes a
	// connection that resets more than 100 per second.
	resets map[string]*rate.Limiter
}

// awaitReset waits until a stream to a server may end with a reset.
func (c connected) awaitReset(t testing.TB, server string) {
	t.Helper()
	if err := c.resets[server].Wait(c.ctx); err != nil {
		t.Fatal(err)
	}
}

func (c caller) connect(t testing.TB, w *world) connected {
	t.Helper()
	found := connected{caller: c, ctx: t.Context(), conns: map[string]*grpc.ClientConn{}, resets: map[string]*rate.Limiter{}}
	if c.metadata != nil {
		found.ctx = metadata.NewOutgoingContext(found.ctx, c.metadata(t, w))
	}
	config := c.files(t, w)
	for server, address := range w.addresses {
		config.ServerName = server
		conn, err := rpcclient.Dial(address, config, slog.New(slog.DiscardHandler), grpc.WithDisableRetry())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		found.conns[server], found.resets[server] = conn, rate.NewLimiter(80, 200)
	}
	return found
}
