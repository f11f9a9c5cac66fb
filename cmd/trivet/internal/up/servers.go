package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/localgateway"
	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// servers are the four server processes, each as its own command runs it, with a common log.
type servers struct {
	tasks       *tasks
	logger      *slog.Logger
	logPath     string
	log         io.Closer
	processes   map[string]*process.Process // by service
	httpAddress string
	client      *grpc.ClientConn // to the gateway
	page        *page
	// settings are those of the user's commands.
	settings localgateway.Settings
}

func startServers(control *controlPlane, creds *credentials, opts Options, logPath string) (*servers, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	s := &servers{
		tasks: newTasks(), logPath: logPath, log: log, processes: map[string]*process.Process{},
		logger: observe.NewLogger(log, observe.LogConfig{Level: "info", Format: "text"}),
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
		cfg := process.DefaultConfig(program)
		if cfg.RPC.TLS, err = creds.server(program.Name); err != nil {
			return err
		}
		cfg.RPC.PeerCAFile = creds.caFile
		cfg.RPC.Connections.TrustLoopback = true // all simulated nodes connect from one address
		if cfg.Kube.Kubeconfig, err = control.kubeconfigOf(program.Name); err != nil {
			return err
		}
		cfg.Cluster = opts.Cluster
		cfg.Etcd = control.etcd
		cfg.Loops = loops(program.Name, opts)
		if opts.FreePorts {
			cfg.RPC.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
		}
		if err := validate(cfg, program); err != nil {
			return err
		}
		p, err := process.New(cfg, program, s.logger)
		if err != nil {
			return fmt.Errorf("%s: %w", program.Name, err)
		}
		s.processes[program.Name] = p
		s.tasks.start(program.Name, p.Run)
	}
	if s.client, err = rpcclient.Dial(s.gatewayAddress(), rpcclient.Config{TLS: creds.admin}, s.logger); err != nil {
		return err
	}
	s.settings = localgateway.Settings{Server: s.gatewayAddress(), HTTPServer: s.httpAddress, TLS: creds.admin}
	if s.page, err = newPage(s.settings, opts); err != nil {
		return err
	}
	s.tasks.start("page", s.page.Run)
	return nil
}

// loops returns the loops of a service. An existing cluster has its own writers of kube-apiserver
// endpoints and of node health, with which Trivet would conflict; a cluster that was started here
// has none.
func loops(service string, opts Options) []string {
	switch {
	case service == "bootstrapsvc" && opts.Kubeconfig != "":
		return []string{"*", "-apiserver-probe", "-kubernetes-endpoints"}
	case service == "leasesvc" && opts.Kubeconfig == "":
		return []string{"*", "node-health"}
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
	return "leasesvc, bootstrapsvc, slicesvc and gateway are listening"
}

func (s *servers) addressOf(service string) string { return s.processes[service].Member().GRPCAddress }
func (s *servers) gatewayAddress() string          { return s.addressOf("gateway") }
func (s *servers) apiURL() string                  { return "https://" + s.httpAddress + "/" }

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
			if pending = notReady(reply.GetStatus()); pending == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// notReady returns which servers are not ready, and why; empty if all are.
func notReady(status *gatewayv1.ClusterStatus) string {
	var pending []string
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc", "gateway"} {
		i := slices.IndexFunc(status.GetServices(), func(service *gatewayv1.ServiceStatus) bool { return service.GetService() == name })
		if i < 0 || len(status.GetServices()[i].GetReplicas()) == 0 {
			pending = append(pending, name+": no replica is registered")
			continue
		}
		service := status.GetServices()[i]
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
	for _, address := range documentedAddresses() {
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

func documentedAddresses() []string {
	lease, bootstrap, slice, gate := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	addresses := []string{gate.HTTPListen, pageAddress}
	for _, program := range []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&gate),
	} {
		cfg := process.DefaultConfig(program)
		addresses = append(addresses, cfg.RPC.Listen, cfg.Admin.Listen)
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
