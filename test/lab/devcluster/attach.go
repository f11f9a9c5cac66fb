package devcluster

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Access is what a process needs to use a Cluster that another process has started. It has the key
// of the cluster's authority.
type Access struct {
	Dir           string // has the files of the credentials
	EtcdPorts     []int
	APIServerPort int
	ClusterCAKey  []byte
}

// Access returns the access to this cluster, which has a kube-apiserver.
func (c *Cluster) Access() (Access, error) {
	if c.apiServer == nil {
		return Access{}, errNoServer
	}
	access := Access{Dir: c.creds.dir, APIServerPort: c.apiServer.port}
	for _, member := range c.etcd {
		access.EtcdPorts = append(access.EtcdPorts, member.port)
	}
	var err error
	access.ClusterCAKey, err = c.creds.clusterCA.KeyPEM()
	return access, err
}

// Servers are the operations of a Cluster that the process which has started it must do.
type Servers interface {
	StopEtcd() error
	StartEtcd() error
	StopAPIServer() error
	StartAPIServer() error
	Err() error
}

// Attach returns a Cluster for a control plane that another process has started. servers forwards
// to that process. Stop stops the additional kube-apiservers of this Cluster, ends the connections
// of this process to the servers, as their end would, and calls release. The data and the members
// of etcd belong to the other process: CopyEtcd and RestoreEtcd fail, and KillEtcdMember panics.
func Attach(access Access, servers Servers, release func() error) (*Cluster, error) {
	paths, err := findBinaries(Config{})
	if err != nil {
		return nil, err
	}
	creds, err := readCredentials(access)
	if err != nil {
		return nil, fmt.Errorf("attach to the control plane in %s: %w", access.Dir, err)
	}
	var etcd []*server
	for _, port := range access.EtcdPorts {
		etcd = append(etcd, &server{name: etcdName, port: port})
	}
	c := newCluster(Config{}.withDefaults(), creds, etcd, func() error {
		return errors.Join(endConnections(append(access.EtcdPorts, access.APIServerPort)), release())
	})
	c.attached = servers
	c.apiServer = &server{name: apiServerName, path: paths.apiServer, port: access.APIServerPort}
	return c, nil
}

// readCredentials needs no key of etcd's authority, which has issued what etcd needs.
func readCredentials(access Access) (*credentials, error) {
	c := &credentials{dir: access.Dir, files: credentialFilesIn(access.Dir)}
	var err error
	if c.etcdCA, err = readAuthority(c.files.etcdCA, nil); err != nil {
		return nil, err
	}
	if c.clusterCA, err = readAuthority(c.files.clusterCA, access.ClusterCAKey); err != nil {
		return nil, err
	}
	if c.etcdClient.CertPEM, err = os.ReadFile(c.files.etcdClientCert); err != nil {
		return nil, err
	}
	if c.etcdClient.KeyPEM, err = os.ReadFile(c.files.etcdClientKey); err != nil {
		return nil, err
	}
	return c, c.issueAdmin(time.Now())
}

// endConnections shuts down the connections of this process to ports of this machine. Clients of
// Kubernetes keep idle connections that no call closes.
func endConnections(ports []int) error {
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		return fmt.Errorf("find the connections of this process: %w", err)
	}
	for _, file := range files {
		descriptor, err := strconv.Atoi(file.Name())
		if err != nil {
			continue
		}
		peer, err := syscall.Getpeername(descriptor)
		if err != nil {
			continue // not a connection
		}
		if address, ok := peer.(*syscall.SockaddrInet4); ok && slices.Contains(ports, address.Port) {
			_ = syscall.Shutdown(descriptor, syscall.SHUT_RDWR) // it may have ended by itself
		}
	}
	return nil
}
