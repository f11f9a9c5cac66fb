package devcluster

import (
	"context"
	"fmt"
	"time"
)

func newEtcd(cfg Config, creds *credentials, path string) *server {
	return &server{
		name:   etcdName,
		path:   path,
		dir:    creds.dir,
		field:  "Config.EtcdPort",
		port:   cfg.EtcdPort,
		pinned: cfg.EtcdPort != 0,
		// etcd would wait seven seconds for open watches. A kill loses no data that it has written.
		grace:  2 * time.Second,
		logger: cfg.Logger,
		args:   func(port int) []string { return etcdArgs(creds.files, port) },
		ready: func(ctx context.Context, port int) error {
			return creds.etcdProbe.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/readyz", port))
		},
	}
}

func etcdArgs(files credentialFiles, port int) []string {
	client := fmt.Sprintf("https://127.0.0.1:%d", port)
	// The only member has no peers but must listen for them, on a free port with client
	// certificates. The advertised address is only a name and must not change at a restart.
	const peer = "https://127.0.0.1:2380"
	return []string{
		"--name=trivet",
		"--data-dir=etcd",
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--client-cert-auth",
		"--trusted-ca-file=" + files.etcdCA,
		"--cert-file=" + files.etcdServerCert,
		"--key-file=" + files.etcdServerKey,
		"--listen-peer-urls=https://127.0.0.1:0",
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=trivet=" + peer,
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + files.etcdCA,
		"--peer-cert-file=" + files.etcdServerCert,
		"--peer-key-file=" + files.etcdServerKey,
		"--unsafe-no-fsync", // data need not survive a power loss
		"--log-level=warn",
		"--log-outputs=stderr",
	}
}
