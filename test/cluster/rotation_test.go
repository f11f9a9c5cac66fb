package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/roles"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// annotated returns the manifest of a Pod with one more annotation.
func annotated(t *testing.T, manifest []byte, key, value string) []byte {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(manifest, pod); err != nil {
		t.Fatal(err)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[key] = value
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// authority reads one of the cluster.
func (f *fixture) authority(t *testing.T, name string) *certs.Authority {
	t.Helper()
	base := filepath.Join(f.Dir(), "pki", name)
	certificate, certErr := os.ReadFile(base + ".crt")
	key, keyErr := os.ReadFile(base + ".key")
	if err := errors.Join(certErr, keyErr); err != nil {
		t.Fatal(err)
	}
	authority, err := certs.ParseAuthority(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// replace changes a file at once and keeps its owner and mode.
func replace(file string, content []byte) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	const serverUser = 65532
	return errors.Join(
		os.WriteFile(file+".new", content, info.Mode()),
		os.Chown(file+".new", 0, serverUser),
		os.Rename(file+".new", file))
}

// TestRotation_ServersCertificates replaces the certificates of all servers of Trivet under calls,
// each on a connection of its own. None fails.
func TestRotation_ServersCertificates(t *testing.T) {
	f := sharedCluster(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	began := time.Now()
	ports := map[string]string{"gateway": gatewayAddress, "leasesvc": leasesvcAddress, "slicesvc": "10.77.0.11:7603", "bootstrapsvc": "10.77.0.11:7602"}

	var calls, failed int
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	calling.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, server := range []string{"gateway", "leasesvc"} {
				if err := f.callOnce(server, ports[server]); err != nil {
					failed++
					t.Errorf("call of %s: %v", server, err)
				}
				calls++
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	defer calling.Wait()
	defer stop()

	authority := f.authority(t, "trivet-ca")
	root, before := f.node(t, "cp1").RootDir(), map[string]*big.Int{}
	for server, address := range ports {
		serial, err := f.serial(server, address)
		if err != nil {
			t.Fatal(err)
		}
		before[server] = serial
		pair, err := authority.Issue(certs.ServerLeaf(server, roles.Namespace, "cluster.local"), certs.LeafLifetime, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Join(root, "etc/trivet", server, "tls")
		if err := errors.Join(replace(base+".crt", pair.CertPEM), replace(base+".key", pair.KeyPEM)); err != nil {
			t.Fatal(err)
		}
	}
	written := time.Now()
	mustEventually(t, 2*time.Minute, func(context.Context) error {
		for server, address := range ports {
			serial, err := f.serial(server, address)
			if err != nil {
				return err
			}
			if serial.Cmp(before[server]) == 0 {
				return fmt.Errorf("%s still serves with its old certificate", server)
			}
		}
		return nil
	})
	served := time.Since(written)
	f.awaitBeats(t, time.Now())
	stop()
	calling.Wait()
	figure(t, "Certificates of four servers replaced: served", milliseconds(served), "≤ 2m")
	figure(t, "… calls that failed", fmt.Sprintf("%d of %d", failed, calls), "0")
	if calls < 10 {
		t.Errorf("only %d calls were made", calls)
	}
	checkNoNodeDeclared(t, h, began)
}

// callOnce makes one call on a new connection.
func (f *fixture) callOnce(server, address string) error {
	conn, err := f.dial(server, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = leasev1.NewLeaseServiceClient(conn).GetLease(ctx, &leasev1.GetLeaseRequest{Name: leaseName(probeNode)})
	return err
}

// serial is that of the certificate that a server serves with.
func (f *fixture) serial(server, address string) (*big.Int, error) {
	config, err := f.TLSConfig(server)
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{"h2"}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	raw, err := f.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	defer conn.Close()
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber, nil
}

// TestRotation_KubeletsClientCertificate gives the kubelets certificates that are about to expire.
// The kubelets get new ones, w1's through the endpoint, and the agents follow.
func TestRotation_KubeletsClientCertificate(t *testing.T) {
	f := sharedCluster(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	const left = 40 * time.Second
	authority, began := f.authority(t, "ca"), time.Now()
	for _, name := range workers() {
		node := f.node(t, name)
		// Most of its life is over, so the kubelet renews it at its start.
		age := time.Since(authority.Certificate().NotBefore)
		pair, err := authority.Issue(certs.NodeLeaf(name), age+left, began.Add(-age))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(node.RootDir(), "var/lib/kubelet/pki")
		worn, current := "kubelet-client-worn.pem", filepath.Join(dir, "kubelet-client-current.pem")
		err = errors.Join(
			os.WriteFile(filepath.Join(dir, worn), append(pair.CertPEM, pair.KeyPEM...), 0o600),
			removed(current+".new"),
			os.Symlink("/var/lib/kubelet/pki/"+worn, current+".new"), os.Rename(current+".new", current),
			node.RestartKubelet())
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range workers() {
		mustEventually(t, left, func(context.Context) error {
			certificate, err := currentCertificate(f.node(t, name).RootDir())
			if err != nil {
				return err
			}
			if certificate.NotAfter.Before(began.Add(10 * left)) {
				return fmt.Errorf("the certificate of %s ends at %v", name, certificate.NotAfter)
			}
			return nil
		})
		figure(t, "Kubelet of "+name+" has a new client certificate", milliseconds(time.Since(began)), "≤ "+left.String())
	}
	// With the old certificate alone no beat and no request would be accepted after its end.
	letPass(t, max(0, left+10*time.Second-time.Since(began)))
	f.awaitBeats(t, time.Now())
	f.awaitBeats(t, time.Now())
	checkNoNodeDeclared(t, h, began)
}

func removed(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// currentCertificate reads what the kubelet's link points at, below the root directory of its node.
func currentCertificate(root string) (*x509.Certificate, error) {
	target, err := os.Readlink(filepath.Join(root, "var/lib/kubelet/pki/kubelet-client-current.pem"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "var/lib/kubelet/pki", filepath.Base(target)))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text) // the key follows
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate", target)
	}
	return x509.ParseCertificate(block.Bytes)
}
