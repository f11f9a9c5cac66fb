package terms

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// readyTimeout is well above the start time of etcd on a loaded machine.
const readyTimeout = 60 * time.Second

// etcdMember is an etcd process that can be killed and restarted on the same ports and data. It
// listens on loopback without TLS.
type etcdMember struct {
	name, dir, binary string
	client, peer      string // host:port
	args              []string
	process           *childprocess.Child
}

// startEtcd starts a cluster of n members below dir. The test's cleanup kills them.
func startEtcd(t testing.TB, dir string, n int) []*etcdMember {
	t.Helper()
	binary, err := etcdBinary()
	if err != nil {
		t.Fatal(err)
	}
	var members []*etcdMember
	var peers []string
	for i := range n {
		m := &etcdMember{name: fmt.Sprintf("etcd-%d", i), dir: dir, binary: binary, client: testkit.FreeAddress(t), peer: testkit.FreeAddress(t)}
		members, peers = append(members, m), append(peers, m.name+"=http://"+m.peer)
	}
	for _, m := range members {
		m.args = m.flags(strings.Join(peers, ","))
		t.Cleanup(m.kill)
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range members {
		if err := m.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return members
}

func (m *etcdMember) flags(cluster string) []string {
	return []string{
		"--name=" + m.name, "--data-dir=" + filepath.Join(m.dir, m.name),
		"--listen-client-urls=http://" + m.client, "--advertise-client-urls=http://" + m.client,
		"--listen-peer-urls=http://" + m.peer, "--initial-advertise-peer-urls=http://" + m.peer,
		"--initial-cluster=" + cluster, "--unsafe-no-fsync", "--log-level=warn", "--log-outputs=stderr",
	}
}

func (m *etcdMember) endpoint() string { return "http://" + m.client }

func (m *etcdMember) start() error {
	var err error
	m.process, err = childprocess.Start(childprocess.Config{
		Name: m.name, Path: m.binary, Args: m.args, Env: []string{"HOME=" + m.dir}, Bare: true, Log: filepath.Join(m.dir, m.name+".log"),
	})
	return err
}

func (m *etcdMember) kill() { m.process.Kill() }

// ready waits until the member is healthy. A member without a quorum is not.
func (m *etcdMember) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := m.serves(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w", m.name, err)
		case <-m.process.Exited():
			return m.process.Death()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *etcdMember) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.endpoint()+"/health", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s: %s", response.Status, body), err)
	}
	return nil
}

// etcdBinary returns the etcd in KUBEBUILDER_ASSETS or, by default, in .assets.
func etcdBinary() (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		root, err := filepath.Abs("../../..")
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, ".assets")
	}
	binary := filepath.Join(dir, "etcd")
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("%w: run `make assets`", err)
	}
	return binary, nil
}

// connect returns a client with the production configuration.
func connect(endpoints ...string) (*clientv3.Client, error) {
	return etcdconn.Connect(etcdconn.Config{Endpoints: endpoints}, slog.New(slog.DiscardHandler))
}

func mustConnect(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := connect(endpoints...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}
