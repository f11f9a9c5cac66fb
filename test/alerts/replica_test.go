package alerts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/test/internal/child"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// stopTimeout is the stop timeout of a replica plus a margin for a loaded machine.
	stopTimeout = 40 * time.Second
	// leafLifetime is far beyond the threshold of TrivetCertificateExpires.
	leafLifetime = 90 * 24 * time.Hour
)

// replica is one server with a proxy on each of its links. A new process takes the place of one
// that was ended.
type replica struct {
	service, name string
	etcd          *faultproxy.Relay
	kube          *faultproxy.KubeProxy
	agents        *faultproxy.Relay // from the agents to listen
	listen, admin string
	dir           string // certificate, audit log, log
	args          []string
	process       *child.Process
}

// newReplica returns a replica whose process does not run yet. beside is its kube-apiserver.
func (w *world) newReplica(service string, number int, args ...string) *replica {
	w.Helper()
	r := &replica{service: service, name: fmt.Sprintf("%s-%d", service, number), listen: testkit.FreeAddress(w.T), admin: testkit.FreeAddress(w.T)}
	r.dir = filepath.Join(w.dir, r.name)
	if err := os.MkdirAll(r.auditDir(), 0o700); err != nil {
		w.Fatal(err)
	}
	user, groups := roles.User(service)
	kubeconfig := filepath.Join(r.dir, "kubeconfig")
	write := w.cluster.WriteKubeconfig
	if number%2 == 1 {
		write = w.peer.WriteKubeconfig
	}
	if err := write(kubeconfig, user, groups...); err != nil {
		w.Fatal(err)
	}
	r.kube = faultproxy.NewKube(w.T, loadConfig(w.T, kubeconfig))
	r.etcd = faultproxy.NewRelay(w.T, strings.TrimPrefix(w.cluster.EtcdEndpoints()[0], "https://"))
	r.agents = faultproxy.NewRelay(w.T, r.listen)
	w.reissue(r, w.authority, leafLifetime)
	ca, cert, key := w.cluster.EtcdFiles()
	r.args = append([]string{
		"--cluster=" + clusterName, "--kubeconfig=" + r.kube.Kubeconfig(w.T),
		"--etcd-endpoints=https://" + r.etcd.Addr(), "--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + r.listen, "--admin-listen=" + r.admin, "--unlimited-loopback",
		"--tls-cert-file=" + r.file("tls.crt"), "--tls-key-file=" + r.file("tls.key"), "--client-ca-file=" + w.ca,
		"--audit-log-file=" + filepath.Join(r.auditDir(), "audit.log"), fmt.Sprintf("--audit-log-max-bytes=%d", 1<<20), "--audit-log-backups=1",
	}, args...)
	if service == "bootstrapsvc" {
		r.args = append(r.args, "--apiserver-advertise-address="+advertised()[number%2], "--apiserver-port=6443")
	}
	w.replicas = append(w.replicas, r)
	return r
}

func (r *replica) file(name string) string { return filepath.Join(r.dir, name) }
func (r *replica) auditDir() string        { return filepath.Join(r.dir, "audit") }

// reissue gives a replica a new certificate, the key first, as its process reads both again.
func (w *world) reissue(r *replica, issuer *certs.Authority, lifetime time.Duration) {
	w.Helper()
	pair, err := issuer.Issue(certs.ServerLeaf(r.service, roles.Namespace, "cluster.local"), lifetime, time.Now())
	if err == nil {
		err = errors.Join(replaceFile(r.file("tls.key"), pair.KeyPEM), replaceFile(r.file("tls.crt"), pair.CertPEM))
	}
	if err != nil {
		w.Fatal(err)
	}
}

func replaceFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// start starts the next process of a replica.
func (r *replica) start() error {
	log, err := os.OpenFile(r.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // The child process has its own descriptor.
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := exec.Command(self, r.args...)
	command.Env = append(os.Environ(), serviceVariable+"="+r.service)
	command.Stdout, command.Stderr = log, log
	r.process, err = child.Start(command)
	return err
}

// stop ends the process in good order.
func (r *replica) stop() error {
	if r.process == nil {
		return nil
	}
	process := r.process
	r.process = nil
	if err := process.Stop(stopTimeout); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	return nil
}

// ended reports whether a process ended by itself.
func (r *replica) ended() bool {
	if r.process == nil {
		return false
	}
	select {
	case <-r.process.Exited():
		return true
	default:
		return false
	}
}

func (r *replica) kill() {
	if r.process != nil {
		r.process.Kill()
		r.process = nil
	}
}

// cutEtcd separates a replica from etcd, or connects it again.
func (r *replica) cutEtcd(cut bool) { r.etcd.Disconnect(cut) }

// lastLines returns the end of a log.
func (r *replica) lastLines() string {
	file, err := os.Open(r.file("log"))
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-4000), io.SeekStart) // The whole log is as good.
	}
	text, _ := io.ReadAll(file)
	return string(text)
}
