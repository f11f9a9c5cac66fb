package clusterstate

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/etcdroles"
	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// checkLease is the TTL in seconds of the key of a check, which removes it after an interrupt.
	checkLease = 10
	// masterLeases is kube-apiserver's prefix of the keys of its endpoint reconcilers.
	masterLeases = "/registry/masterleases/"
	// clusterKey is the key of Service default/kubernetes.
	clusterKey = "/registry/services/specs/default/kubernetes"
	// alertTime is how long a server may take to refuse a client certificate after the handshake.
	alertTime = 500 * time.Millisecond
)

// closeClient closes a client; its connections end in any case.
func closeClient(client *clientv3.Client) { _ = client.Close() }

// EtcdMembers asks each member for its status.
func EtcdMembers(ctx context.Context, config etcdconn.Config) ([]diagnosis.EtcdMember, error) {
	client, err := etcdconn.Connect(config, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer closeClient(client)
	members := make([]diagnosis.EtcdMember, len(config.Endpoints))
	done := make(chan int, len(members))
	for i, endpoint := range config.Endpoints {
		go func() {
			members[i] = etcdMember(ctx, client, config, endpoint)
			done <- i
		}()
	}
	for range members {
		<-done
	}
	return members, nil
}

func etcdMember(ctx context.Context, client *clientv3.Client, config etcdconn.Config, endpoint string) diagnosis.EtcdMember {
	m := diagnosis.EtcdMember{Endpoint: endpoint}
	if m.Failure = connects(ctx, config, endpoint); m.Failure.Failed() {
		return m
	}
	answer, err := client.Status(ctx, endpoint)
	if err != nil {
		m.Failure = FailureOf(err)
		return m
	}
	m.Version = answer.Version
	m.Alarms = answer.Errors
	return m
}

// connects makes one connection, whose error is more exact than that of etcd's client.
func connects(ctx context.Context, config etcdconn.Config, endpoint string) diagnosis.Failure {
	target, err := url.Parse(endpoint)
	if err != nil {
		return diagnosis.Failure{Text: err.Error(), Answered: true}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		return FailureOf(err)
	}
	defer conn.Close()
	if target.Scheme != "https" {
		return diagnosis.Failure{}
	}
	files := identity.Files{CertFile: config.CertFile, KeyFile: config.KeyFile, CAFile: config.CAFile}
	client, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return diagnosis.Failure{Text: err.Error(), Answered: true}
	}
	secure := client.TLS()
	secure.ServerName, secure.NextProtos = target.Hostname(), []string{"h2"}
	secured := tls.Client(conn, secure)
	if err := secured.HandshakeContext(ctx); err != nil {
		return FailureOf(err)
	}
	// With TLS 1.3 a server refuses a client certificate after the handshake.
	_ = secured.SetReadDeadline(time.Now().Add(alertTime))
	if _, err := secured.Read(make([]byte, 1)); err != nil && isRefusal(err) {
		return FailureOf(err)
	}
	return diagnosis.Failure{}
}

// FailureOf says whether an error is an answer of the other side, or of the operating system.
func FailureOf(err error) diagnosis.Failure {
	return diagnosis.Failure{Text: exit.Message(err), Answered: isRefusal(err)}
}

func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.InvalidArgument:
		return true
	}
	text := err.Error()
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) ||
		strings.Contains(text, "connection refused") || strings.Contains(text, "tls: ") || strings.Contains(text, "x509: ") ||
		strings.Contains(text, "permission denied") || strings.Contains(text, "no such host") && !strings.Contains(text, "temporary")
}

// EtcdTransaction writes a key with a lease below the prefix of a cluster, by the transactions that
// leadership needs, and removes it.
func EtcdTransaction(ctx context.Context, config etcdconn.Config, cluster string) (diagnosis.EtcdTransaction, error) {
	client, err := etcdconn.Connect(config, slog.New(slog.DiscardHandler))
	if err != nil {
		return diagnosis.EtcdTransaction{}, err
	}
	defer closeClient(client)
	result := transact(ctx, client, etcdconn.KeyPrefix(cluster)+"check/"+rand.Text())
	if result.Failure.Failed() || result.Wrong != "" {
		return result, nil
	}
	roles := etcdroles.Of(etcdconn.KeyPrefix(cluster), etcdroles.DefaultRegistry)
	bootstrapsvc := slices.IndexFunc(roles, func(r etcdroles.Role) bool { return r.Name == etcdroles.User("bootstrapsvc") })
	for _, grant := range roles[bootstrapsvc].Grants {
		if !strings.HasPrefix(grant.Key, etcdroles.DefaultRegistry) {
			continue
		}
		options := []clientv3.OpOption{clientv3.WithCountOnly()}
		if grant.End != "" {
			options = append(options, clientv3.WithRange(grant.End))
		}
		if _, err := client.Get(ctx, grant.Key, options...); errors.Is(err, rpctypes.ErrPermissionDenied) {
			result.Denied = append(result.Denied, grant.Key)
		} else if err != nil {
			return diagnosis.EtcdTransaction{Step: "read " + grant.Key, Failure: FailureOf(err)}, nil
		}
	}
	return result, nil
}

func transact(ctx context.Context, client *clientv3.Client, key string) diagnosis.EtcdTransaction {
	failed := func(step string, err error) diagnosis.EtcdTransaction {
		return diagnosis.EtcdTransaction{Step: step, Failure: FailureOf(err)}
	}
	wrong := func(text string) diagnosis.EtcdTransaction { return diagnosis.EtcdTransaction{Wrong: text} }
	lease, err := client.Grant(ctx, checkLease)
	if err != nil {
		return failed("grant a lease", err)
	}
	began := time.Now()
	created, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "1", clientv3.WithLease(lease.ID))).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return failed("write a key in a transaction", err)
	}
	took := time.Since(began)
	if !created.Succeeded {
		return wrong("a new key exists already")
	}
	again, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "2")).Else(clientv3.OpGet(key)).Commit()
	switch {
	case err != nil:
		return failed("compare a key in a transaction", err)
	case again.Succeeded:
		return wrong("a transaction ignores its condition")
	case len(again.Responses) != 1 || len(again.Responses[0].GetResponseRange().GetKvs()) != 1:
		return wrong("a transaction does not read in its else branch")
	}
	found := again.Responses[0].GetResponseRange().GetKvs()[0]
	if found.CreateRevision != created.Header.Revision || found.Lease != int64(lease.ID) {
		return wrong(fmt.Sprintf("key has revision %d and lease %x, want %d and %x", found.CreateRevision, found.Lease, created.Header.Revision, lease.ID))
	}
	if _, err := client.Revoke(ctx, lease.ID); err != nil {
		return failed("revoke the lease", err)
	}
	left, err := client.Get(ctx, key)
	switch {
	case err != nil:
		return failed("read a key", err)
	case len(left.Kvs) > 0:
		return wrong("a key outlives its lease")
	}
	return diagnosis.EtcdTransaction{Took: took}
}

// MasterLeases returns the keys of kube-apiservers with their own endpoint reconciler. read is
// false if the etcd is not that of the cluster, or may not be read.
func (k *Kube) MasterLeases(ctx context.Context, config etcdconn.Config) (keys []diagnosis.MasterLease, read bool, err error) {
	uid, err := k.clusterUID(ctx)
	if err != nil {
		return nil, false, err
	}
	client, err := etcdconn.Connect(config, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, false, err
	}
	defer closeClient(client)
	stored, err := client.Get(ctx, clusterKey)
	if err != nil || len(stored.Kvs) == 0 || !bytes.Contains(stored.Kvs[0].Value, []byte(uid)) {
		return nil, false, nil
	}
	found, err := client.Get(ctx, masterLeases, clientv3.WithPrefix()) // a list of keys only has no leases
	if err != nil {
		return nil, false, nil
	}
	for _, kv := range found.Kvs {
		key := diagnosis.MasterLease{Address: strings.TrimPrefix(string(kv.Key), masterLeases)}
		if kv.Lease != 0 {
			lease, err := client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
			key.Alive = err == nil && lease.TTL > 0
		}
		keys = append(keys, key)
	}
	return keys, true, nil
}

// FileCertificates reads the first certificate of files. Empty paths are skipped.
func FileCertificates(paths ...string) []diagnosis.Certificate {
	return readCertificates(paths, func(chain []*x509.Certificate) *x509.Certificate { return chain[0] })
}

// FileAuthorities reads the authority of a file that ends last. A former authority may have
// expired.
func FileAuthorities(paths ...string) []diagnosis.Certificate {
	return readCertificates(paths, func(chain []*x509.Certificate) *x509.Certificate {
		return slices.MaxFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	})
}

func readCertificates(paths []string, choose func([]*x509.Certificate) *x509.Certificate) []diagnosis.Certificate {
	var found []diagnosis.Certificate
	for _, path := range paths {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			found = append(found, diagnosis.Certificate{Name: path, Problem: err.Error()})
			continue
		}
		found = append(found, parse(path, content, choose))
	}
	return found
}

func parse(name string, text []byte, choose func([]*x509.Certificate) *x509.Certificate) diagnosis.Certificate {
	chain, err := certs.ParseCertificates(text)
	if err != nil {
		return diagnosis.Certificate{Name: name, Problem: err.Error()}
	}
	chosen := choose(chain)
	return diagnosis.Certificate{Name: name, NotBefore: chosen.NotBefore, NotAfter: chosen.NotAfter}
}
