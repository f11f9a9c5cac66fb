package devcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/workdir"
)

// Cluster is a running control plane. Its methods are safe for concurrent use; those that start or
// stop a server wait for each other.
type Cluster struct {
	cfg      Config
	creds    *credentials
	release  func() error // of the directory, or of the attached control plane
	attached Servers      // nil if this process has started the cluster

	// stopping ends when Stop begins and cancels a start in progress.
	stopping  context.Context
	beginStop context.CancelCauseFunc

	mu        sync.Mutex // guards the fields below; serializes starts and stops
	etcd      []*server  // its members
	apiServer *server    // nil with Config.EtcdOnly
	peers     []*server
	stopped   bool
	stopErr   error

	watchers sync.WaitGroup // one for each child
	failOnce sync.Once
	err      error         // why done was closed; written before, read after
	done     chan struct{} // closed by the first unexpected death or by Stop
}

var errStopped = errors.New("the cluster is stopped")

// Start starts a control plane and returns when it is ready, within seconds, or minutes on a busy
// machine. After an error (a *MissingBinaryError, a *PortTakenError, the last log lines of a server
// that died, or ctx's cause) no process and no temporary file remains. ctx bounds the start only;
// the cluster runs until Stop.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	paths, err := findBinaries(cfg)
	if err != nil {
		return nil, err
	}
	if err := recordStart(cfg); err != nil {
		return nil, err
	}
	dir, err := workdir.Open(cfg.DataDir, "trivet-devcluster-")
	if err != nil {
		return nil, err
	}
	creds, err := newCredentials(dir.Path())
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	etcd, err := newEtcd(cfg, creds, paths.etcd)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	c := newCluster(cfg, creds, etcd, dir.Close)
	if !cfg.EtcdOnly {
		c.apiServer = newAPIServer(cfg, creds, paths.apiServer, c.etcdURL)
	}
	if err := c.startServers(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// binaries are absolute paths.
type binaries struct{ etcd, apiServer string }

// findBinaries reports all missing binaries at once.
func findBinaries(cfg Config) (binaries, error) {
	dir := assetsDir(cfg.AssetsDir)
	etcd, err := binary(dir, etcdName)
	if cfg.EtcdOnly {
		return binaries{etcd: etcd}, err
	}
	apiServer, apiServerErr := binary(dir, apiServerName)
	return binaries{etcd: etcd, apiServer: apiServer}, errors.Join(err, apiServerErr)
}

func newCluster(cfg Config, creds *credentials, etcd []*server, release func() error) *Cluster {
	stopping, beginStop := context.WithCancelCause(context.Background())
	return &Cluster{
		cfg:       cfg,
		creds:     creds,
		release:   release,
		stopping:  stopping,
		beginStop: beginStop,
		done:      make(chan struct{}),
		etcd:      etcd,
	}
}

func (c *Cluster) startServers(ctx context.Context) error {
	if err := c.startServer(ctx, c.etcd...); err != nil || c.cfg.EtcdOnly {
		return err
	}
	// An apiserver would wait for ever for an etcd that has died.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.watchers.Go(func() {
		select {
		case <-c.done:
			cancel(c.err)
		case <-ctx.Done():
		}
	})
	if err := c.startServer(ctx, c.apiServer); err != nil {
		return err
	}
	return c.WriteKubeconfig(c.Kubeconfig(), adminName, adminGroup)
}

// StopEtcd stops all members of etcd, as a fault; their data and ports stay. It is idempotent.
func (c *Cluster) StopEtcd() error {
	if c.attached != nil {
		return c.attached.StopEtcd()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var stopping sync.WaitGroup
	for _, s := range c.etcd {
		stopping.Go(s.stop)
	}
	stopping.Wait()
	return nil
}

// StartEtcd starts the members of etcd that are stopped or dead, and returns when they are ready.
// It does nothing if all run, and fails after Stop. Done stays closed after a death, also after a
// restart.
func (c *Cluster) StartEtcd() error {
	if c.attached != nil {
		return c.attached.StartEtcd()
	}
	return c.startServer(context.Background(), c.etcd...)
}

// StopAPIServer stops kube-apiserver only, as StopEtcd does.
func (c *Cluster) StopAPIServer() error {
	if c.attached != nil {
		return c.attached.StopAPIServer()
	}
	return c.stopServer(c.apiServer)
}

// StartAPIServer starts kube-apiserver again, as StartEtcd does.
func (c *Cluster) StartAPIServer() error {
	if c.attached != nil {
		return c.attached.StartAPIServer()
	}
	return c.startServer(context.Background(), c.apiServer)
}

var errNoServer = errors.New("this cluster has no kube-apiserver: it was started with Config.EtcdOnly")

// startServer starts those of some servers that do not run. They may need each other to be ready.
func (c *Cluster) startServer(ctx context.Context, servers ...*server) error {
	if slices.Contains(servers, nil) {
		return errNoServer
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.stopping, func() { cancel(context.Cause(c.stopping)) })()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return fmt.Errorf("start %s: %w", servers[0].name, errStopped)
	}
	var idle []*server
	for _, s := range servers {
		if s.child == nil || s.child.Gone() {
			idle = append(idle, s)
		}
	}
	if err := startAll(ctx, idle); err != nil {
		return err
	}
	for _, s := range idle {
		name, running := s.name, s.child
		c.watchers.Go(func() { c.watch(name, running) })
	}
	return nil
}

func (c *Cluster) stopServer(s *server) error {
	if s == nil {
		return errNoServer
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.stop()
	return nil
}

// watch waits for the end of a child and reports it if it was not requested.
func (c *Cluster) watch(name string, running *childprocess.Child) {
	<-running.Exited()
	if running.Stopping() {
		return
	}
	err := running.Death()
	c.cfg.Logger.Error("server died", "server", name, "error", err)
	c.finish(err)
}

func (c *Cluster) finish(err error) {
	c.failOnce.Do(func() {
		c.err = err
		close(c.done)
	})
}

// Done is closed when a server that this process has started has died, or when Stop has begun.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err returns which server died and how. It returns nil before Done is closed, and after a Stop
// without a death. For an attached cluster it also asks the process that runs the servers.
func (c *Cluster) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
	}
	if c.attached != nil {
		return c.attached.Err()
	}
	return nil
}

// Stop stops both servers and removes temporary files, or detaches from servers that another
// process has started. It kills a server that does not stop within seconds. A second call waits for
// the first and returns its result.
func (c *Cluster) Stop() error {
	c.beginStop(errStopped)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return c.stopErr
	}
	c.stopped = true
	c.finish(nil)
	// Stop the apiservers first, because without etcd they would retry. Peers may be frozen, so
	// they are killed.
	for _, peer := range c.peers {
		peer.kill()
	}
	if c.apiServer != nil {
		c.apiServer.stop()
	}
	for _, member := range c.etcd {
		member.stop()
	}
	c.watchers.Wait()
	if err := c.release(); err != nil {
		c.stopErr = fmt.Errorf("release the control plane: %w", err)
	}
	return c.stopErr
}
