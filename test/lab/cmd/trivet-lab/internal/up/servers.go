package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
)

// servers are the four server processes, each as its own command runs it, with a common log.
type servers struct {
	tasks       *tasks
	logger      *slog.Logger
	logLevel    *observe.LogLevel // of all servers, because they share the log
	logPath     string
	log         io.Closer
	processes   map[string]*process.Process // by service; those in this process
	replicas    []*replica                  // of a demo, each in a process of its own
	died        chan error                  // buffers the first unexpected end of a replica
	httpAddress string
	client      *grpc.ClientConn // to the gateway
	page        *page
	settings    settings
}

func startServers(control *controlPlane, creds *credentials, opts Options, logPath string) (*servers, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	format := observe.LogConfig{Level: "info", Format: "text"}
	level := observe.NewLogLevel(format)
	s := &servers{
		tasks: newTasks(), logPath: logPath, log: log, processes: map[string]*process.Process{}, died: make(chan error, 1),
		logger: observe.NewLoggerAt(log, format, level), logLevel: level,
	}
	observe.Bridge(s.logger)
	if err := s.start(control, creds, opts); err != nil {
		return nil, errors.Join(withPortHint(err), s.stop())
	}
	return s, nil
}

// start starts the servers in order. After an error, stop stops the started ones.
func (s *servers) start(control *controlPlane, creds *credentials, opts Options) error {
	programs, err := s.programs(control, opts)
	if err != nil {
		return err
	}
	for _, program := range programs {
		cfg, err := s.configure(program, control, creds, opts)
		if err != nil {
			return err
		}
		if opts.Demo && program.Name != gatewayName {
			err = s.startReplicas(program, cfg, control, opts)
		} else {
			err = s.startProcess(program, cfg)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", program.Name, err)
		}
	}
	s.tasks.start("replica", func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.died:
			return err
		}
	})
	if s.client, err = rpcclient.Dial(s.gatewayAddress(), rpcclient.Config{TLS: creds.admin}, s.logger); err != nil {
		return err
	}
	s.settings = settings{server: s.gatewayAddress(), httpServer: s.httpAddress, tls: creds.admin}
	return nil
}

// gatewayName is the name of the gateway among the programs.
const gatewayName = "gateway"

// configure returns the configuration that all replicas of a program have in common.
func (s *servers) configure(program process.Program, control *controlPlane, creds *credentials, opts Options) (process.Config, error) {
	cfg := process.DefaultConfig(program)
	var err error
	if cfg.RPC.TLS, err = creds.server(program.Name); err != nil {
		return cfg, err
	}
	cfg.RPC.PeerCAFile = creds.caFile
	cfg.RPC.Connections.TrustLoopback = true // all simulated nodes connect from one address
	if cfg.Kube.Kubeconfig, err = control.kubeconfigOf(program.Name); err != nil {
		return cfg, err
	}
	cfg.Cluster, cfg.Runtime.LogLevel = opts.Cluster, s.logLevel
	cfg.Etcd = control.etcd
	cfg.Loops = loops(program.Name, opts)
	if opts.FreePorts {
		cfg.RPC.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	}
	return cfg, validate(cfg, program)
}

func (s *servers) startProcess(program process.Program, cfg process.Config) error {
	p, err := process.New(cfg, program, s.logger)
	if err != nil {
		return err
	}
	s.processes[program.Name] = p
	s.tasks.start(program.Name, p.Run)
	return nil
}

// startReplicas starts the replicas of a program in processes of their own. Each replica of
// bootstrapsvc is beside a kube-apiserver of its own.
func (s *servers) startReplicas(program process.Program, cfg process.Config, control *controlPlane, opts Options) error {
	for n := range replicasOfService {
		flags := demoFlags(program.Name)
		if program.Name == "bootstrapsvc" {
			advertised := documentationAddress
			if n > 0 {
				advertised = secondDocumentationAddress
				var err error
				if cfg.Kube.Kubeconfig, err = control.secondKubeconfigOf(program.Name); err != nil {
					return err
				}
			}
			// Both listen on loopback, on ports of their own. In a cluster they have one port.
			flags = append(flags, "--apiserver-advertise-address="+advertised, "--apiserver-port=6443")
		}
		r, err := newReplica(program, n+1, cfg, flags, opts, filepath.Dir(s.logPath), s.died)
		if err != nil {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	return nil
}

// demoFlags are the flags of a service with which a person sees the effect of a fault soon, and
// repairs wait for a person.
func demoFlags(service string) []string {
	switch service {
	case "leasesvc":
		return []string{
			"--heartbeat-interval=2s", "--heartbeat-grace-period=8s", "--lease-duration=16s",
			fmt.Sprintf("--node-monitor-grace-period=%ds", fault.GracePeriod),
		}
	case "bootstrapsvc":
		return []string{"--auto-repair=off"}
	default:
		return nil
	}
}

// servePage starts the page. demo answers its buttons; nil without a demo.
func (s *servers) servePage(opts Options, demo http.Handler) error {
	var err error
	if s.page, err = newPage(s.settings, opts, demo); err != nil {
		return err
	}
	s.tasks.start("page", s.page.Run)
	return nil
}

// loops returns the loops of a service. An existing cluster has its own writers of kube-apiserver
// endpoints, of node health and of mirrored slices, with which Trivet would conflict; a cluster
// that was started here has none.
func loops(service string, opts Options) []string {
	switch {
	case service == "bootstrapsvc" && opts.Kubeconfig != "":
		return []string{"*", "-apiserver-probe", "-kubernetes-endpoints"}
	case service == "leasesvc" && opts.Kubeconfig == "":
		return []string{"*", "node-health"}
	case service == "slicesvc" && opts.Kubeconfig == "":
		return []string{"*", slicesvc.MirrorLoopName}
	default:
		return []string{"*"}
	}
}

// withPortHint adds a hint to the error of a port in use, because ports have no flags here.
func withPortHint(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; is another Trivet running? --free-ports avoids its ports", err)
	}
	return err
}

func validate(cfg process.Config, program process.Program) error {
	problems := cfg.Validate(program)
	if program.Validate != nil {
		problems = append(problems, program.Validate()...)
	}
	return errors.Join(problems...)
}

func (s *servers) programs(control *controlPlane, opts Options) ([]process.Program, error) {
	lease, bootstrap, slice, gate := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	bootstrap.AdvertiseAddress = control.advertise
	if opts.FreePorts {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		gate.HTTPListen = address
	}
	s.httpAddress = gate.HTTPListen
	return []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&gate),
	}, nil
}

func (s *servers) describe() string {
	if len(s.replicas) > 0 {
		return fmt.Sprintf("%d replicas of the services, and the gateway", len(s.replicas))
	}
	return "leasesvc, bootstrapsvc, slicesvc and gateway are listening"
}

// addressesOf returns the gRPC addresses of the replicas of a service.
func (s *servers) addressesOf(service string) []string {
	if p := s.processes[service]; p != nil {
		return []string{p.Member().GRPCAddress}
	}
	var addresses []string
	for _, r := range s.replicas {
		if r.service == service {
			addresses = append(addresses, r.address)
		}
	}
	return addresses
}

func (s *servers) gatewayAddress() string { return s.processes[gatewayName].Member().GRPCAddress }
func (s *servers) apiURL() string         { return "https://" + s.httpAddress + "/" }

// awaitReady polls the gateway until every server is ready and every shard has a leader. Problems
// of the cluster itself, such as a dead Node, do not delay it. If ctx is done first, the error has
// what is missing.
func (s *servers) awaitReady(ctx context.Context) error {
	client := gatewayv1.NewClusterServiceClient(s.client)
	pending := "the gateway has not answered"
	for {
		reply, err := client.GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s", context.Cause(ctx), pending)
		case err != nil:
			pending = err.Error()
		default:
			if pending = notReady(reply.GetStatus(), s.replicasOf); pending == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// replicaAt returns the id of the replica that serves an address; empty if the gateway does not
// know.
func (s *servers) replicaAt(ctx context.Context, address string) string {
	ctx, cancel := context.WithTimeout(ctx, replicaTimeout)
	defer cancel()
	reply, err := gatewayv1.NewClusterServiceClient(s.client).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
	if err != nil {
		return ""
	}
	for _, service := range reply.GetStatus().GetServices() {
		for _, result := range service.GetReplicas() {
			if result.GetReplica().GetGrpcAddress() == address {
				return result.GetReplica().GetId()
			}
		}
	}
	return ""
}

// replicaTimeout limits the question for the id of a replica.
const replicaTimeout = 3 * time.Second

// replicasOf returns the number of replicas of a service.
func (s *servers) replicasOf(service string) int { return max(1, len(s.addressesOf(service))) }

// notReady returns which servers are not ready, and why; empty if all are.
func notReady(status *gatewayv1.ClusterStatus, replicasOf func(service string) int) string {
	var pending []string
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"} {
		i := slices.IndexFunc(status.GetServices(), func(service *gatewayv1.ServiceStatus) bool { return service.GetService() == name })
		if i < 0 || len(status.GetServices()[i].GetReplicas()) == 0 {
			pending = append(pending, name+": no replica is registered")
			continue
		}
		service := status.GetServices()[i]
		if n, wanted := len(service.GetReplicas()), replicasOf(name); n < wanted {
			pending = append(pending, fmt.Sprintf("%s: %d of %d replicas are registered", name, n, wanted))
		}
		if service.GetLedShardCount() < service.GetShardCount() {
			pending = append(pending, fmt.Sprintf("%s: %d of %d shards have a leader", name, service.GetLedShardCount(), service.GetShardCount()))
		}
		for _, result := range service.GetReplicas() {
			if !result.GetStatus().GetReady() {
				pending = append(pending, name+": "+notReadyReason(result.GetStatus()))
			}
		}
	}
	return strings.Join(pending, "; ")
}

func notReadyReason(status *statusv1.ReplicaStatus) string {
	switch problems := status.GetProblems(); {
	case status == nil:
		return "no answer"
	case len(problems) > 0:
		return "not ready: " + problems[0].GetMessage()
	default:
		return "not ready"
	}
}

// stop stops the servers as a signal does: they drain and hand over their shards. s may be nil.
func (s *servers) stop() error {
	if s == nil {
		return nil
	}
	var group sync.WaitGroup
	for _, r := range s.replicas {
		group.Go(r.stop)
	}
	group.Wait()
	s.tasks.stop()
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	return errors.Join(err, s.log.Close())
}

// checkPorts returns a usage error for the documented ports that are in use, before the slow start
// of a control plane. A port that is taken later fails the start of its server.
func checkPorts(opts Options) error {
	if opts.FreePorts {
		return nil
	}
	var inUse []error
	for _, address := range documentedAddresses(opts) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			inUse = append(inUse, err)
			continue
		}
		l.Close()
	}
	if len(inUse) == 0 {
		return nil
	}
	return exit.UsageError(append(inUse, errors.New("is another Trivet running? --free-ports avoids its ports"))...)
}

func documentedAddresses(opts Options) []string {
	lease, bootstrap, slice, gate := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	addresses := []string{gate.HTTPListen, pageAddress}
	for _, program := range []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&gate),
	} {
		cfg := process.DefaultConfig(program)
		addresses = append(addresses, cfg.RPC.Listen, cfg.Admin.Listen)
		if opts.Demo && program.Name != gatewayName {
			for _, port := range []int{program.GRPCPort, program.AdminPort} {
				addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(port+secondPortOffset)))
			}
		}
	}
	return addresses
}

// freeAddress returns the address of a port that is free now. If the port is taken before the
// gateway listens, the gateway fails to start.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
