package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// replicasOfService is the number of replicas of each service of a demo.
	replicasOfService = 2
	// secondPortOffset is from the port of the first replica to that of the second one.
	secondPortOffset = 20
	// stopGrace is the time from SIGTERM to SIGKILL.
	stopGrace = 15 * time.Second
	// replicaCommand runs a replica: this program, as the server's own program runs.
	replicaCommand = "replica"
)

// newReplicaCommand returns the hidden command that runs one replica of a demo in its own process.
func newReplicaCommand() *cobra.Command {
	return &cobra.Command{
		Use:                replicaCommand + " SERVICE [FLAGS]",
		Short:              "Run one replica of a service, with the flags of the service",
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			lease, bootstrap, slice := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig()
			for _, program := range []process.Program{leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice)} {
				if program.Name != args[0] {
					continue
				}
				if code := process.Main(args[1:], program); code != exit.OK {
					return &exit.Error{Code: code} // the program has reported the cause
				}
				return nil
			}
			return exit.UsageError(fmt.Errorf("%q is no service", args[0]))
		},
	}
}

// replica is one replica of a service in its own process. Its methods are safe for concurrent use;
// those that start or end the process wait for each other.
type replica struct {
	name, service, address string
	dir                    string
	args                   []string
	// died gets the cause if the process ends and neither a fault nor stop asked for it.
	died chan<- error

	mu     sync.Mutex // guards child and broken
	child  *childprocess.Child
	broken bool
}

// newReplica returns the n-th replica of a program, from 1.
func newReplica(program process.Program, n int, cfg process.Config, flags []string, opts Options, dir string, died chan<- error) (*replica, error) {
	offset := (n - 1) * secondPortOffset
	listen, err := demoAddress(program.GRPCPort+offset, opts)
	if err != nil {
		return nil, err
	}
	admin, err := demoAddress(program.AdminPort+offset, opts)
	if err != nil {
		return nil, err
	}
	args := []string{
		"up", replicaCommand, program.Name, "--listen=" + listen, "--admin-listen=" + admin, "--cluster=" + cfg.Cluster,
		"--kubeconfig=" + cfg.Kube.Kubeconfig, "--etcd-endpoints=" + cfg.Etcd.Endpoints[0],
		"--etcd-ca-file=" + cfg.Etcd.CAFile, "--etcd-cert-file=" + cfg.Etcd.CertFile, "--etcd-key-file=" + cfg.Etcd.KeyFile,
		"--tls-cert-file=" + cfg.RPC.TLS.CertFile, "--tls-key-file=" + cfg.RPC.TLS.KeyFile,
		"--client-ca-file=" + cfg.RPC.TLS.CAFile, "--peer-ca-file=" + cfg.RPC.PeerCAFile, "--unlimited-loopback",
	}
	for _, name := range cfg.Loops {
		args = append(args, "--loops="+name)
	}
	return &replica{
		name: fmt.Sprintf("%s-%d", program.Name, n), service: program.Name, address: listen,
		dir: dir, args: append(args, flags...), died: died,
	}, nil
}

// demoAddress returns a loopback address with the port, or with a free one with --free-ports. A
// free port is none of outgoing connections, so that it stays free while the replica is stopped.
func demoAddress(port int, opts Options) (string, error) {
	if opts.FreePorts {
		var err error
		if port, err = devcluster.FreePort(); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil
}

// start starts the process unless it runs.
func (r *replica) start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = false
	if r.child != nil && !r.child.Gone() {
		return r.child.Thaw()
	}
	child, err := childprocess.Start(childprocess.Config{
		Name: r.name, Args: r.args, Dir: r.dir, Log: filepath.Join(r.dir, r.name+".log"), Grace: stopGrace,
		Env: []string{"HOME=" + r.dir, "TMPDIR=" + r.dir}, Bare: true,
	})
	if err != nil {
		return err
	}
	r.child = child
	go r.watch(child)
	return nil
}

// watch reports the end of a process for which nothing has asked.
func (r *replica) watch(child *childprocess.Child) {
	<-child.Exited()
	r.mu.Lock()
	defer r.mu.Unlock()
	if child.Stopping() || r.broken {
		return
	}
	select {
	case r.died <- child.Death():
	default:
	}
}

// breakIt breaks the process in one of the ways of fault.Service.
func (r *replica) breakIt(how string) (fault.Effect, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child == nil || r.child.Gone() {
		return fault.Effect{}, errors.New("the replica does not run")
	}
	r.broken = true
	what := fmt.Sprintf("process %d, which serves %s", r.child.PID(), r.address)
	switch how {
	case fault.Hang:
		return fault.Effect{Text: "suspended " + what}, r.child.Freeze()
	case fault.Kill:
		r.child.Kill()
		return fault.Effect{Text: "killed " + what}, nil
	default:
		_ = r.child.Stop() // also a replica that had to be killed is stopped
		return fault.Effect{Text: "stopped " + what}, nil
	}
}

// stop ends the process, also a suspended one.
func (r *replica) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child == nil || r.child.Gone() {
		return
	}
	_ = r.child.Thaw() // fails for a process that has just ended
	_ = r.child.Stop() // fails for one that has just ended or had to be killed
}

// awaitServing waits until something accepts connections at the address.
func (r *replica) awaitServing(ctx context.Context) error {
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", r.address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen: %w", r.name, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
