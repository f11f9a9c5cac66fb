package deploy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// The Job of the chart makes the certificates of etcd's members at a real kube-apiserver, with its
// own roles. Three members with the command line of the StatefulSet then form a cluster, take
// writes of the servers' client while one of them is gone. They refuse a client without a
// certificate, and a peer with the certificate of the servers' client.
func TestEmbeddedEtcd_MembersServeWithTheirOwnCertificates(t *testing.T) {
	helm(t)
	runtime.LockOSThread() // the kernel kills the members when the thread that started them ends
	t.Cleanup(runtime.UnlockOSThread)
	objects := template(t, set("etcd.embedded.enabled=true", "servers.slicesvc.enabled=false", "monitoring.scrape=PodMonitor",
		"certificates.dnsNames.gateway[0]=trivet.example.org", "certificates.lifetime=2160h")...)
	cluster := testkit.Cluster(t)
	makeSystem(t)
	applyRoles(t, cluster, objects)
	t.Cleanup(func() { removeCertificates(t, testkit.Kube(t)) })
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, username("certs"), "system:serviceaccounts"); err != nil {
		t.Fatal(err)
	}
	job := exec.CommandContext(t.Context(), gobuild.Command(t, "trivet"), append(jobArguments(t, objects), "--kubeconfig="+kubeconfig)...)
	if output, err := job.CombinedOutput(); err != nil {
		t.Fatalf("the Job: %v\n%s", err, output)
	}
	server, client := writeSecret(t, "trivet-etcd-server-tls"), writeSecret(t, "trivet-leasesvc-etcd")
	members := startMembers(t, objects, server)

	etcd := members.connect(t, client)
	write := func(value string) func() error {
		return func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := etcd.Put(ctx, "/trivet/default/test", value)
			return err
		}
	}
	eventually(t, write("by three"))
	listed, err := etcd.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(listed.Members) != len(members) {
		t.Errorf("%d members, want %d", len(listed.Members), len(members))
	}
	members[0].stop(t)
	eventually(t, write("by two"))
	members[0].replace(t, etcd, client)
	eventually(t, write("by three again"))

	members[1].expectRefusal(t, members[1].client, tls.Certificate{})
	for _, other := range []string{"trivet-gateway-tls", "trivet-leasesvc-tls", "trivet-metrics-tls"} { // of the same authority
		members[1].expectRefusal(t, members[1].client, keyPair(t, writeSecret(t, other)))
	}
	if _, err := members.connect(t, server).MemberList(t.Context()); err != nil {
		t.Errorf("etcdctl in the Pod of a member, as docs/install.md has it: %v", err)
	}
	members[1].expectRefusal(t, members[1].peer, keyPair(t, client))
}

// expectRefusal fails the test unless the member ends a connection to one of its addresses because
// of the certificate. In TLS 1.3 the refusal comes after the client's part of the handshake.
func (m *member) expectRefusal(t *testing.T, address string, certificate tls.Certificate) {
	t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: m.roots, Certificates: []tls.Certificate{certificate}}
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "remote error: tls:") {
		t.Errorf("%s: %v, want a refusal of the certificate", address, err)
	}
}

// writeSecret writes the files of a Secret, as the kubelet does, and returns their folder.
func writeSecret(t *testing.T, name string) string {
	t.Helper()
	secret, err := testkit.Kube(t).CoreV1().Secrets(system).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, key := range []string{"ca.crt", corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if err := os.WriteFile(filepath.Join(folder, key), secret.Data[key], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// member is an etcd process with the command line of a Pod of the StatefulSet.
type member struct {
	client, peer string // addresses
	roots        *x509.CertPool
	args         []string
	data         string // what --data-dir is below
	process      *exec.Cmd
	log          bytes.Buffer
}

type etcdMembers []*member

// startMembers starts the containers of the StatefulSet as processes. The names of Pods become
// addresses of loopback, and each member has addresses of its own.
func startMembers(t *testing.T, objects []*unstructured.Unstructured, tlsFolder string) etcdMembers {
	t.Helper()
	sets := ofKind[appsv1.StatefulSet](t, objects, "StatefulSet")
	if len(sets) != 1 {
		t.Fatalf("%d StatefulSets, want one", len(sets))
	}
	container := sets[0].Spec.Template.Spec.Containers[0]
	var members etcdMembers
	var shared []string // replacements that every member has
	addresses := map[int][3]string{}
	for i := range int(*sets[0].Spec.Replicas) {
		addresses[i] = [3]string{testkit.FreeAddress(t), testkit.FreeAddress(t), testkit.FreeAddress(t)}
		name := fmt.Sprintf("etcd-%d.etcd.%s.svc.cluster.local", i, system)
		shared = append(shared,
			fmt.Sprintf("%s:2379", name), addresses[i][0],
			fmt.Sprintf("%s:2380", name), addresses[i][1])
	}
	for i := range len(addresses) {
		m := &member{
			client: addresses[i][0], peer: addresses[i][1],
			roots: rootsOf(t, tlsFolder), data: t.TempDir(),
		}
		own := strings.NewReplacer("$(POD_NAME)", fmt.Sprintf("etcd-%d", i), "/etc/etcd/tls", tlsFolder, "/var/lib/etcd", m.data,
			"0.0.0.0:2379", m.client, "0.0.0.0:2380", m.peer, "0.0.0.0:2381", addresses[i][2])
		for _, argument := range container.Args {
			m.args = append(m.args, strings.NewReplacer(shared...).Replace(own.Replace(argument)))
		}
		m.start(t)
		t.Cleanup(func() {
			m.stop(t)
			if t.Failed() {
				t.Logf("etcd-%d said:\n%s", i, m.log.String())
			}
		})
		members = append(members, m)
	}
	return members
}

func (m *member) start(t *testing.T) {
	t.Helper()
	m.process = exec.CommandContext(context.WithoutCancel(t.Context()), "../../.assets/etcd", m.args...)
	m.process.Stdout, m.process.Stderr = &m.log, &m.log
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.process.Start(); err != nil {
		t.Fatal(err)
	}
}

// stop ends the process, as a machine does that loses its power.
func (m *member) stop(t *testing.T) {
	t.Helper()
	if err := m.process.Process.Kill(); err != nil {
		t.Errorf("the member has ended by itself: %v", err)
	}
	_ = m.process.Wait() // it says that the process was killed
}

// replace does what docs/install.md says about a member that lost its volume: the others forget it
// and take it as a new one, which starts with etcd.embedded.state=existing. It waits until the
// member has joined.
func (m *member) replace(t *testing.T, etcd *clientv3.Client, folder string) {
	t.Helper()
	url := "https://" + m.peer
	listed, err := etcd.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range listed.Members {
		if slices.Contains(known.PeerURLs, url) {
			if _, err := etcd.MemberRemove(t.Context(), known.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, func() error { // etcd refuses while it is not sure about the remaining members
		_, err := etcd.MemberAdd(t.Context(), []string{url})
		return err
	})
	if err := os.RemoveAll(filepath.Join(m.data, "data")); err != nil {
		t.Fatal(err)
	}
	for i, argument := range m.args {
		if argument == "--initial-cluster-state=new" {
			m.args[i] = "--initial-cluster-state=existing"
		}
	}
	m.start(t)
	own := etcdMembers{m}.connect(t, folder)
	eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := own.Get(ctx, "/trivet/default/test")
		return err
	})
}

// connect returns a client of the members with the files of a folder.
func (m etcdMembers) connect(t *testing.T, folder string) *clientv3.Client {
	t.Helper()
	var endpoints []string
	for _, member := range m {
		endpoints = append(endpoints, "https://"+member.client)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{keyPair(t, folder)}, RootCAs: rootsOf(t, folder)}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { etcd.Close() })
	return etcd
}

func keyPair(t *testing.T, folder string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, corev1.TLSCertKey), filepath.Join(folder, corev1.TLSPrivateKeyKey))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func rootsOf(t *testing.T, folder string) *x509.CertPool {
	t.Helper()
	bundle, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return roots
}
