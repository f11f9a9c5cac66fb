package devcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns the path of the administrator's kubeconfig; empty with Config.EtcdOnly.
func (c *Cluster) Kubeconfig() string {
	if c.apiServer == nil {
		return ""
	}
	return filepath.Join(c.creds.dir, "kubeconfig")
}

// RESTConfig returns a new administrator's configuration without a client-side rate limit; nil with
// Config.EtcdOnly.
func (c *Cluster) RESTConfig() *rest.Config {
	if c.apiServer == nil {
		return nil
	}
	return &rest.Config{
		Host: c.apiServerURL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.creds.clusterCA.CertPEM(),
			CertData: c.creds.admin.CertPEM,
			KeyData:  c.creds.admin.KeyPEM,
		},
		QPS: -1,
	}
}

// ClientCertificate issues a client certificate of commonName in groups for kube-apiserver. etcd
// refuses it.
func (c *Cluster) ClientCertificate(commonName string, groups ...string) (certPEM, keyPEM []byte, err error) {
	pair, err := c.creds.clusterCA.client(time.Now(), commonName, groups...)
	return pair.CertPEM, pair.KeyPEM, err
}

// WriteKubeconfig writes to path a kubeconfig for commonName in groups, readable by its owner only.
// An existing file is replaced.
func (c *Cluster) WriteKubeconfig(path, commonName string, groups ...string) error {
	if c.apiServer == nil {
		return errNoServer
	}
	return c.writeKubeconfig(path, c.apiServerURL(), commonName, groups...)
}

func (c *Cluster) writeKubeconfig(path, server, commonName string, groups ...string) error {
	cert, key, err := c.ClientCertificate(commonName, groups...)
	if err != nil {
		return err
	}
	const name = "trivet"
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			name: {Server: server, CertificateAuthorityData: c.creds.clusterCA.CertPEM()},
		},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{commonName: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: commonName}},
		CurrentContext: name,
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		return fmt.Errorf("write kubeconfig of %q: %w", commonName, err)
	}
	return nil
}

// EtcdEndpoints returns the client URLs of etcd, one for each member.
func (c *Cluster) EtcdEndpoints() []string {
	var urls []string
	for _, member := range c.etcd {
		urls = append(urls, fmt.Sprintf("https://127.0.0.1:%d", member.port))
	}
	return urls
}

// EtcdFiles returns the paths of the files of an etcd client: the authority of the server, and a
// client certificate with its key.
func (c *Cluster) EtcdFiles() (ca, cert, key string) {
	return c.creds.files.etcdCA, c.creds.files.etcdClientCert, c.creds.files.etcdClientKey
}

// EtcdCertificate issues a client certificate of commonName for etcd. kube-apiserver refuses it.
// Only the process that has started etcd has the key of its authority.
func (c *Cluster) EtcdCertificate(commonName string) (certPEM, keyPEM []byte, err error) {
	pair, err := c.creds.etcdCA.client(time.Now(), commonName)
	return pair.CertPEM, pair.KeyPEM, err
}

// EtcdClient returns a new client without waiting for a connection. It connects again within about
// a second after etcd is back. The caller closes it.
func (c *Cluster) EtcdClient() (*clientv3.Client, error) {
	config, err := clientTLS(c.creds.etcdCA, c.creds.etcdClient)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.EtcdEndpoints(),
		TLS:       config,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: 5 * time.Second,
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("make etcd client: %w", err)
	}
	return client, nil
}

// Ports do not change after Start has returned, so they are read without the lock. Before that,
// only the goroutine of Start reads them.

// etcdURL has the URLs of all members.
func (c *Cluster) etcdURL() string { return strings.Join(c.EtcdEndpoints(), ",") }

func (c *Cluster) apiServerURL() string {
	return fmt.Sprintf("https://127.0.0.1:%d", c.apiServer.port)
}

// SetFull raises or clears the alarm that the first member of etcd raises at its quota: it refuses
// all writes of keys then.
func (c *Cluster) SetFull(full bool) error {
	client, err := c.EtcdClient()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	status, err := client.Status(ctx, c.EtcdEndpoints()[0])
	if err != nil {
		return fmt.Errorf("status of etcd: %w", err)
	}
	action := pb.AlarmRequest_DEACTIVATE
	if full {
		action = pb.AlarmRequest_ACTIVATE
	}
	_, err = pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{
		Action: action, MemberID: status.Header.MemberId, Alarm: pb.AlarmType_NOSPACE,
	})
	if err != nil {
		return fmt.Errorf("set the alarm of etcd: %w", err)
	}
	return nil
}
