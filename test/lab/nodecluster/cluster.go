package nodecluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Cluster is one that Start has started or Open has found. It holds no resource of this process.
type Cluster struct {
	config  Config
	id      string // names its cgroups
	network network
	pki     *authorities
	nodes   []*Node
}

// state is what the directory of a cluster says about it.
type state struct {
	ID     string
	Config Config
}

const (
	stateFile    = "cluster.json"
	readyTimeout = 5 * time.Minute
)

// Start makes a cluster in an empty or absent directory and returns when its nodes and its servers
// are ready. After an error the returned cluster, if any, is what exists of it: Down removes it.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	config = config.withDefaults()
	if err := errors.Join(config.validate(), checkMachine(config)); err != nil {
		return nil, err
	}
	c, err := create(config)
	if err != nil {
		return nil, err
	}
	if c.pki, err = newAuthorities(filepath.Join(config.Dir, "pki")); err != nil {
		return c, err
	}
	if err := c.network.create(ctx, config.Nodes); err != nil {
		return c, err
	}
	if err := c.startRelay(ctx); err != nil {
		return c, err
	}
	if err := c.writeImages(); err != nil {
		return c, err
	}
	for i, node := range c.nodes {
		if err := writeNodeFiles(config, i, node.RootDir(), node.cgroup, c.pki); err != nil {
			return c, fmt.Errorf("write files of node %s: %w", node.Name, err)
		}
		if err := c.equipAgent(ctx, node); err != nil {
			return c, err
		}
	}
	return c, c.boot(ctx)
}

// boot starts the first node, whose kube-apiserver gives the others their rights, and then these.
func (c *Cluster) boot(ctx context.Context) error {
	begin := time.Now()
	if err := c.nodes[0].Boot(ctx); err != nil {
		return err
	}
	if err := poll(ctx, readyTimeout, func() error { return c.Ready(ctx, c.nodes[0]) }); err != nil {
		return fmt.Errorf("kube-apiserver of %s: %w; its logs are below %s", c.nodes[0].Name, err, c.nodes[0].LogDir())
	}
	c.config.Logger.Info("kube-apiserver is ready", "after", time.Since(begin).Round(100*time.Millisecond))
	if err := c.applyObjects(ctx); err != nil {
		return err
	}
	var boots errgroup.Group
	for _, node := range c.nodes[1:] {
		boots.Go(func() error { return node.Boot(ctx) })
	}
	if err := boots.Wait(); err != nil {
		return err
	}
	if err := errors.Join(c.WaitReady(ctx, readyTimeout), c.labelControlPlane(ctx)); err != nil {
		return err
	}
	c.config.Logger.Info("all nodes and static Pods are ready", "after", time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// Open returns the cluster of a directory, whether it runs or not.
func Open(dir string) (*Cluster, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("read state of the cluster: %w", err)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("parse state of the cluster: %w", err)
	}
	s.Config.Dir = dir
	c := newCluster(s.Config.withDefaults(), s.ID)
	// An interrupted start may have made none. Down needs none.
	if pki, err := openAuthorities(filepath.Join(dir, "pki")); err == nil {
		c.pki = pki
	}
	return c, nil
}

func newCluster(config Config, id string) *Cluster {
	c := &Cluster{config: config, id: id, network: network{dir: filepath.Join(config.Dir, "net")}}
	for i, node := range config.Nodes {
		c.nodes = append(c.nodes, &Node{
			Name: node.Name, Address: nodeAddress(i), PodCIDR: podCIDR(i),
			cluster: c, index: i, dir: filepath.Join(config.Dir, "nodes", node.Name), cgroup: "trivet-" + id + "-" + node.Name,
		})
	}
	return c
}

// create writes the state before anything else exists, so that Down finds everything.
func create(config Config) (*Cluster, error) {
	if err := os.MkdirAll(config.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("make directory of the cluster: %w", err)
	}
	entries, err := os.ReadDir(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("list directory of the cluster: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty: end its cluster first", config.Dir)
	}
	c := newCluster(config, strings.ToLower(rand.Text()[:6]))
	text, err := json.Marshal(state{ID: c.id, Config: config})
	if err != nil {
		return nil, fmt.Errorf("encode state of the cluster: %w", err)
	}
	return c, writeFile(filepath.Join(config.Dir, stateFile), text, 0o600)
}

// Down ends the cluster and removes everything about it. It works on the rest of a cluster, too,
// and may be called again.
func (c *Cluster) Down(ctx context.Context) error {
	var problems []error
	files, err := filepath.Glob(filepath.Join(c.config.Dir, "*.pid"))
	problems = append(problems, err)
	for _, file := range files {
		if pid, running := readPID(file); running {
			problems = append(problems, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	for _, node := range c.nodes {
		problems = append(problems, node.kill(ctx), removeCgroups(node.cgroup))
	}
	problems = append(problems, c.network.remove())
	if err := errors.Join(problems...); err != nil {
		return err // the directory stays, so that Down can be called again
	}
	return os.RemoveAll(c.config.Dir)
}

// Dir is the directory of the cluster, Kubeconfig the administrator's file in it, for the relay on
// 127.0.0.1.
func (c *Cluster) Dir() string { return c.config.Dir }

// Kubeconfig is the administrator's file, for the relay on 127.0.0.1.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.config.Dir, adminKubeconfig) }

// WithoutTrivet reports whether the cluster was started without servers and agents of Trivet.
func (c *Cluster) WithoutTrivet() bool { return c.config.WithoutTrivet }

// Nodes returns the nodes in the order of the configuration.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Node returns the node of that name.
func (c *Cluster) Node(name string) (*Node, error) {
	for _, node := range c.nodes {
		if node.Name == name {
			return node, nil
		}
	}
	return nil, fmt.Errorf("the cluster has no node %q", name)
}

// DialContext connects to a numeric address of the cluster, of a node or a Pod, from the hub.
func (c *Cluster) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	return c.network.dial(ctx, hubName, address)
}

// DialFrom connects from the network of a node.
func (c *Cluster) DialFrom(ctx context.Context, node, address string) (net.Conn, error) {
	return c.network.dial(ctx, node, address)
}

// RESTConfig returns an administrator's configuration for the kube-apiserver of one node, without a
// client-side rate limit.
func (c *Cluster) RESTConfig(node *Node) *rest.Config {
	pki := func(file string) string { return filepath.Join(c.config.Dir, "pki", file) }
	return &rest.Config{
		Host: fmt.Sprintf("https://%s:%d", node.Address, apiServerPort),
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: pki("ca.crt"), CertFile: pki("admin.crt"), KeyFile: pki("admin.key"),
		},
		Dial: c.DialContext,
		QPS:  -1,
	}
}

// Client returns an administrator's client of the kube-apiserver of one node.
func (c *Cluster) Client(node *Node) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(c.RESTConfig(node))
	if err != nil {
		return nil, fmt.Errorf("make a client of kube-apiserver: %w", err)
	}
	return client, nil
}

// Credentials are the files of an administrator's TLS client of Trivet's servers.
func (c *Cluster) Credentials() (ca, cert, key string) {
	pki := filepath.Join(c.config.Dir, "pki")
	return filepath.Join(pki, "trivet-ca.crt"), filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key")
}

// TLSConfig is an administrator's, for a server of Trivet by its name. The servers listen on the
// addresses of their nodes: bootstrapsvc on 7602 of each control-plane node; the gateway on 7600
// and 7680, leasesvc on 7601 and slicesvc on 7603 of the first one.
func (c *Cluster) TLSConfig(server string) (*tls.Config, error) {
	ca, cert, key := c.Credentials()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load certificate of the administrator: %w", err)
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: server}, nil
}

// apiServers are the addresses of all kube-apiservers.
func (c *Cluster) apiServers() []netip.AddrPort {
	var servers []netip.AddrPort
	for i, node := range c.config.Nodes {
		if node.ControlPlane {
			servers = append(servers, netip.AddrPortFrom(nodeAddress(i), apiServerPort))
		}
	}
	return servers
}

// writeImages makes the archives once and links them into the directories of the nodes that need
// them.
func (c *Cluster) writeImages() error {
	images := filepath.Join(c.config.Dir, "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		return fmt.Errorf("make directory of images: %w", err)
	}
	all := []string{filepath.Join(images, "pause.tar")}
	if err := WriteImage(all[0], pauseImage, filepath.Join(c.config.Trivet, "pause")); err != nil {
		return err
	}
	archive := c.config.TrivetImage
	if programs := c.trivetPrograms(); archive == "" && len(programs) > 0 {
		archive = filepath.Join(images, "trivet.tar")
		if err := WriteImage(archive, "docker.io/library/"+trivetImage, programs...); err != nil {
			return err
		}
	}
	if archive != "" {
		all = append(all, archive)
	}
	all = append(all, c.config.Images...)
	for i, node := range c.nodes {
		mine := all
		for _, name := range controlPlaneImages(c.config, i) {
			archive := filepath.Join(images, name+".tar")
			if !exists(archive) {
				if err := WriteImage(archive, "localhost/"+name+imageTag, filepath.Join(c.config.Assets, name)); err != nil {
					return err
				}
			}
			mine = append(mine[:len(mine):len(mine)], archive)
		}
		for _, archive := range mine {
			if err := link(archive, filepath.Join(node.imagesDir(), filepath.Base(archive))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) trivetPrograms() []string {
	var programs []string
	for _, name := range []string{"trivet-server", "leasesvc", "bootstrapsvc", "slicesvc", "gateway", "trivet", "trivet-agent"} {
		if file := filepath.Join(c.config.Trivet, name); exists(file) {
			programs = append(programs, file)
		}
	}
	return programs
}

func controlPlaneImages(c Config, i int) []string {
	var images []string
	if c.Nodes[i].ControlPlane {
		images = append(images, "kube-apiserver")
	}
	if i == 0 {
		images = append(images, "etcd", "kube-controller-manager", "kube-scheduler")
	}
	return images
}

// link makes a hard link, or a copy if the file is on another disk.
func link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if os.Link(from, to) == nil {
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy file: %w", err)
	}
	return writeFile(to, content, 0o755)
}

// equipAgent writes the kubeconfig with which a kubelet uses the agent's endpoint. The agent makes
// it from the node's own files.
func (c *Cluster) equipAgent(ctx context.Context, node *Node) error {
	if c.config.WithoutTrivet || c.config.Nodes[node.index].Agent != EndpointAgent {
		return nil
	}
	const program = "/opt/trivet-agent"
	if err := link(filepath.Join(c.config.Trivet, "trivet-agent"), filepath.Join(node.RootDir(), program)); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, program, "kubeconfig", "--from", "/etc/kubernetes/kubelet.conf",
		"--kubelet-endpoint", kubeletEndpoint, "--state-dir", "/var/lib/trivet-agent")
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: node.RootDir()}
	var stderr strings.Builder
	command.Stderr = &stderr
	kubeconfig, err := command.Output()
	if err != nil {
		return fmt.Errorf("trivet-agent kubeconfig of node %s: %w: %s", node.Name, err, stderr.String())
	}
	return writeFile(filepath.Join(node.RootDir(), endpointKubeconfig), kubeconfig, 0o600)
}

// checkMachine names what is missing.
func checkMachine(c Config) error {
	var problems []error
	if os.Geteuid() != 0 {
		problems = append(problems, errors.New("nodes need root"))
	}
	for _, program := range []string{"ip", "nsenter", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			problems = append(problems, fmt.Errorf("the program %s is missing: install iproute2, util-linux, runc", program))
		}
	}
	if !exists("/usr/lib/cni/bridge") {
		problems = append(problems, errors.New("/usr/lib/cni/bridge is missing: install containernetworking-plugins"))
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "containerd-shim-runc-v2", "ctr"} {
		if !exists(filepath.Join(c.Assets, name)) {
			problems = append(problems, fmt.Errorf("%s misses %s: run make assets-nodes", c.Assets, name))
		}
	}
	return errors.Join(problems...)
}
