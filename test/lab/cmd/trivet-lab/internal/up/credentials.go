package up

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
)

const (
	// administrator is the name of the person behind `trivet-lab up`, with all rights in the
	// cluster.
	administrator       = "trivet-admin"
	administratorsGroup = "system:masters"
)

// credentials are the certificates of one `trivet-lab up`, in a folder that only its user can read.
// The key of the authority stays in memory, and each start makes a new one.
type credentials struct {
	dir       string
	authority *certs.Authority
	now       time.Time
	// caFile verifies the servers. clientCAFile verifies clients: those of this authority and those
	// of the cluster's, such as the user of its kubeconfig.
	caFile, clientCAFile string
	admin                identity.Files
}

// newCredentials writes the authorities and the certificate of the administrator. clusterCA may be
// empty.
func newCredentials(dir string, clusterCA []byte) (*credentials, error) {
	now := time.Now()
	authority, err := certs.NewAuthority("trivet-lab up", certs.LeafLifetime, now)
	if err != nil {
		return nil, err
	}
	c := &credentials{
		dir: dir, authority: authority, now: now,
		caFile: filepath.Join(dir, "ca.crt"), clientCAFile: filepath.Join(dir, "client-ca.crt"),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the certificates: %w", err)
	}
	for path, content := range map[string][]byte{
		c.caFile: authority.CertPEM(), c.clientCAFile: append(authority.CertPEM(), clusterCA...),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, fmt.Errorf("write authorities: %w", err)
		}
	}
	c.admin, err = c.client("admin", certs.ClientLeaf(administrator, administratorsGroup))
	return c, err
}

// server returns the files of a server: its certificate, and the authorities of its clients.
func (c *credentials) server(name string) (identity.Files, error) {
	return c.write(name, certs.ServerLeaf(name, roles.Namespace, "cluster.local"), c.clientCAFile)
}

// node returns the files of a node's agent.
func (c *credentials) node(name string) (identity.Files, error) {
	return c.client(filepath.Join("nodes", name), certs.NodeLeaf(name))
}

// client returns the files of a client of the servers.
func (c *credentials) client(name string, leaf certs.Leaf) (identity.Files, error) {
	return c.write(name, leaf, c.caFile)
}

func (c *credentials) write(name string, leaf certs.Leaf, caFile string) (identity.Files, error) {
	pair, err := c.authority.Issue(leaf, certs.LeafLifetime, c.now)
	if err != nil {
		return identity.Files{}, err
	}
	files := identity.Files{
		CertFile: filepath.Join(c.dir, name+".crt"), KeyFile: filepath.Join(c.dir, name+".key"), CAFile: caFile,
	}
	if err := os.MkdirAll(filepath.Dir(files.CertFile), 0o700); err != nil {
		return identity.Files{}, fmt.Errorf("make the folder of the certificates: %w", err)
	}
	for path, content := range map[string][]byte{files.CertFile: pair.CertPEM, files.KeyFile: pair.KeyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return identity.Files{}, fmt.Errorf("write the certificate of %s: %w", leaf.User, err)
		}
	}
	return files, nil
}
