package devcluster

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// etcdPeer is the address of the only member of an etcd. It is only a name, and must not change at
// a restart.
const etcdPeer = "https://127.0.0.1:2380"

// newEtcd returns the members of an etcd.
func newEtcd(cfg Config, creds *credentials, path string) ([]*server, error) {
	if cfg.EtcdMembers < 2 {
		return []*server{newMember(cfg, creds, path, member{name: "trivet", dir: etcdName, peer: etcdPeer, listen: "https://127.0.0.1:0"})}, nil
	}
	var members []member
	var initial []string
	for n := range cfg.EtcdMembers {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		address := fmt.Sprintf("https://127.0.0.1:%d", port)
		m := member{name: fmt.Sprintf("trivet-%d", n+1), dir: fmt.Sprintf("%s-%d", etcdName, n+1), peer: address, listen: address}
		members = append(members, m)
		initial = append(initial, m.name+"="+m.peer)
	}
	var servers []*server
	for _, m := range members {
		m.initial = strings.Join(initial, ",")
		servers = append(servers, newMember(cfg, creds, path, m))
	}
	return servers, nil
}

// member is one member of an etcd. dir is its data directory and the name of its log.
type member struct{ name, dir, peer, listen, initial string }

func newMember(cfg Config, creds *credentials, path string, m member) *server {
	return &server{
		name:   m.dir,
		path:   path,
		dir:    creds.dir,
		field:  "Config.EtcdPort",
		port:   cfg.EtcdPort,
		pinned: cfg.EtcdPort != 0,
		// etcd would wait seven seconds for open watches. A kill loses no data that it has written.
		grace:  2 * time.Second,
		logger: cfg.Logger,
		args:   func(port int) []string { return etcdArgs(creds.files, m, port) },
		ready: func(ctx context.Context, port int) error {
			return creds.etcdProbe.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/readyz", port))
		},
	}
}

func etcdArgs(files credentialFiles, m member, port int) []string {
	client := fmt.Sprintf("https://127.0.0.1:%d", port)
	if m.initial == "" {
		m.initial = m.name + "=" + m.peer
	}
	return []string{
		"--name=" + m.name,
		"--data-dir=" + m.dir,
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--client-cert-auth",
		"--trusted-ca-file=" + files.etcdCA,
		"--cert-file=" + files.etcdServerCert,
		"--key-file=" + files.etcdServerKey,
		// The only member has no peers but must listen for them, on a free port with client
		// certificates.
		"--listen-peer-urls=" + m.listen,
		"--initial-advertise-peer-urls=" + m.peer,
		"--initial-cluster=" + m.initial,
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + files.etcdCA,
		"--peer-cert-file=" + files.etcdServerCert,
		"--peer-key-file=" + files.etcdServerKey,
		"--unsafe-no-fsync", // data need not survive a power loss
		"--log-level=warn",
		"--log-outputs=stderr",
	}
}
