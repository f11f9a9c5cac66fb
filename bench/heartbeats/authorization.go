package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// authorizedOverAllowed is the most that authorization may add to the cost of a heartbeat.
const authorizedOverAllowed = 1.03

// benchClass is a class about which kube-apiserver decides, so that one client may beat for all of
// its holders. Its Leases need Nodes, of which there are none: nothing is written.
const benchClass = `--classes=[{"name":"bench","namespace":"bench","heartbeatInterval":"1s","ownedByNode":true,"holderRule":{"type":"SubjectAccessReview"}}]`

// measureAuthorization compares a server that authorizes with one that allows everything. Both have
// TLS and identify the client.
func measureAuthorization(ctx context.Context, b *bench) ([]row, error) {
	files, err := issueFiles(b.logDir)
	if err != nil {
		return nil, err
	}
	var contenders []*contender
	reviews := 0.0
	err = b.withCluster(ctx, func(cluster *devcluster.Cluster) error {
		var servers []*server.Server
		for _, mode := range []string{"RBAC", "AlwaysAllow"} {
			server, err := b.securedLeasesvc(ctx, cluster, files, mode)
			if err != nil {
				return err
			}
			defer server.Stop()
			servers = append(servers, server)
			contenders = append(contenders, &contender{name: mode, pid: server.Process().PID(), plan: plan{
				Address: server.GRPC, Class: "bench", Connections: 16, Streams: 64, Holders: 1, TLS: files.clients, ServerName: "leasesvc",
			}})
		}
		if err := takeTurns(ctx, contenders, either(b, 20, 6), order{For: time.Second}); err != nil {
			return err
		}
		reviews, err = reviewsOf(ctx, servers[0])
		return err
	})
	if err != nil {
		return nil, err
	}
	on, off := contenders[0].cost, contenders[1].cost
	b.progress("RBAC: %v; AlwaysAllow: %v; reviews: %.0f", on, off, reviews)
	ratio := on.each() / off.each()
	return []row{
		{
			what:   "server CPU of a heartbeat with TLS and authorization, 16 connections × 64 streams, as fast as possible",
			target: fmt.Sprintf("≤ %.2f × --authorization-mode=AlwaysAllow", authorizedOverAllowed),
			ours:   fmt.Sprintf("%v, %.3f ×", on, ratio), beside: fmt.Sprintf("AlwaysAllow: %v", off), missed: ratio > authorizedOverAllowed,
		},
		{
			what:   fmt.Sprintf("requests to kube-apiserver for the authorization of %s such heartbeats on 1,024 streams", thousands(float64(on.beats))),
			target: "≤ 1 per stream", ours: fmt.Sprintf("%.0f", reviews), missed: reviews > 1024,
		},
	}, nil
}

// reviewsOf returns how many requests to kube-apiserver a server has made to authorize callers.
func reviewsOf(ctx context.Context, server *server.Server) (float64, error) {
	text, err := server.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	return sumOf(text, "trivet_access_reviews_total")
}

// tlsFiles are the files of the servers and of the clients, which are administrators. They are
// many, because an identity has a limit of open streams.
type tlsFiles struct {
	server  identity.Files
	clients []identity.Files
}

func issueFiles(parent string) (files tlsFiles, err error) {
	dir, err := os.MkdirTemp(parent, "tls-")
	if err != nil {
		return files, err
	}
	now := time.Now()
	ca, err := certs.NewAuthority("bench", time.Hour, now)
	if err != nil {
		return files, err
	}
	write := func(name string, content []byte) (path string) {
		path = filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path, content, 0o600))
		return path
	}
	authority := write("ca.crt", ca.CertPEM())
	issue := func(name string, leaf certs.Leaf) identity.Files {
		pair, failed := ca.Issue(leaf, time.Hour, now)
		err = errors.Join(err, failed)
		return identity.Files{CAFile: authority, CertFile: write(name+".crt", pair.CertPEM), KeyFile: write(name+".key", pair.KeyPEM)}
	}
	files.server = issue("server", certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"))
	for i := range 16 {
		name := fmt.Sprintf("bench-%d", i)
		files.clients = append(files.clients, issue(name, certs.ClientLeaf(name, "system:masters")))
	}
	return files, err
}

func clientTLS(files identity.Files, serverName string) (*tls.Config, error) {
	authority, err := os.ReadFile(files.CAFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: serverName, MinVersion: tls.VersionTLS13}, nil
}

// securedLeasesvc starts a server of a cluster of its own, so that it leads all shards.
func (b *bench) securedLeasesvc(ctx context.Context, cluster *devcluster.Cluster, files tlsFiles, mode string) (*server.Server, error) {
	client, err := clientTLS(files.clients[0], "leasesvc")
	if err != nil {
		return nil, err
	}
	log := filepath.Join(b.logDir, fmt.Sprintf("%s-leasesvc-%s.log", b.part, mode))
	return server.Run(ctx, server.Config{
		ControlPlane: cluster, Service: "leasesvc", BinDir: b.binDir, Log: log, Client: client,
		Args: []string{
			"--cluster=bench-" + strings.ToLower(mode), "--authorization-mode=" + mode, benchClass, shortInterval,
			"--tls-cert-file=" + files.server.CertFile, "--tls-key-file=" + files.server.KeyFile, "--client-ca-file=" + files.server.CAFile,
			fmt.Sprintf("--max-concurrent-streams=%d", maxStreams), "--max-connection-age=0", "--unlimited-loopback",
			"--max-registrations-per-second=10000000", "--max-messages-per-second=10000000", "--audit-log-file=",
		},
	})
}
