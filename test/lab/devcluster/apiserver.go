package devcluster

import (
	"context"
	"fmt"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

func newAPIServer(cfg Config, creds *credentials, path string, etcdURL func() string) *server {
	return &server{
		name:   apiServerName,
		path:   path,
		dir:    creds.dir,
		field:  "Config.APIServerPort",
		port:   cfg.APIServerPort,
		pinned: cfg.APIServerPort != 0,
		grace:  10 * time.Second,
		logger: cfg.Logger,
		args:   func(port int) []string { return apiServerArgs(cfg, creds.files, etcdURL(), port) },
		ready: func(ctx context.Context, port int) error {
			return apiServerReady(ctx, creds.adminProbe, fmt.Sprintf("https://127.0.0.1:%d", port))
		},
	}
}

func apiServerArgs(cfg Config, files credentialFiles, etcdURL string, port int) []string {
	args := []string{
		"--etcd-servers=" + etcdURL,
		"--etcd-cafile=" + files.etcdCA,
		"--etcd-certfile=" + files.etcdClientCert,
		"--etcd-keyfile=" + files.etcdClientKey,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + files.apiServerCert,
		"--tls-private-key-file=" + files.apiServerKey,
		"--client-ca-file=" + files.clusterCA,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + files.signingKey,
		"--service-account-key-file=" + files.verificationKey,
		// No token controller runs, so no pod could be created otherwise.
		"--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=" + cfg.ServiceCIDR,
		// bootstrapsvc writes the endpoints of default/kubernetes.
		"--endpoint-reconciler-type=none",
	}
	if address := advertiseAddress(cfg); address != "" {
		args = append(args, "--advertise-address="+address)
	}
	return append(args, cfg.APIServerArgs...)
}

// advertiseAddress returns the configured address, or "" for the apiserver's default. Without a
// default route the apiserver would refuse to start, so the address is loopback then.
func advertiseAddress(cfg Config) string {
	if cfg.AdvertiseAddress != "" {
		return cfg.AdvertiseAddress
	}
	if _, err := utilnet.ChooseHostInterface(); err != nil {
		return "127.0.0.1"
	}
	return ""
}

// apiServerReady also checks the system namespaces, because /readyz can be ok before the apiserver
// has created them.
func apiServerReady(ctx context.Context, probe *probe, url string) error {
	if err := probe.get(ctx, url+"/readyz"); err != nil {
		return err
	}
	for _, namespace := range []string{"kube-system", "kube-public", "kube-node-lease", "default"} {
		if err := probe.get(ctx, url+"/api/v1/namespaces/"+namespace); err != nil {
			return err
		}
	}
	return nil
}
