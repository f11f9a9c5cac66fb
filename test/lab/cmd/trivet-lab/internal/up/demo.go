package up

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
	"github.com/trivet-dev/trivet/test/lab/simulate"
)

const (
	// nodeReportPeriod is how often Nodes that are marked and live report that they are ready.
	nodeReportPeriod = 2 * time.Second
	// flapPeriod is how often the Pods of a flapping Service change.
	flapPeriod = time.Second
	// socketName is the socket for `trivet-lab break`, in the folder of `trivet-lab up`.
	socketName = "demo.sock"
)

// demo is what --demo adds: faults, and the servers through which a person asks for them. A nil
// *demo is a `trivet-lab up` without.
type demo struct {
	tasks      *tasks // the socket, and what the fleet does because of faults
	controller *faultcontroller.Controller
	cpu        *cpuMeter
	token      string
	socket     net.Listener
	path       string // of the socket

	cancel context.CancelFunc // ends the controller
	ended  chan error         // gets the result of the controller
}

// startDemo starts the demo, with one finding that waits for a person.
func (u *instance) startDemo(ctx context.Context) (string, error) {
	path := u.dir.File(socketName)
	socket, err := listenUnix(path)
	if err != nil {
		return "", err
	}
	actions := newActions(u)
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d := &demo{
		tasks: newTasks(), controller: faultcontroller.New(actions, u.servers.logger), cpu: newCPUMeter(), token: rand.Text(),
		socket: socket, path: path, cancel: cancel, ended: make(chan error, 1),
	}
	u.demo = d
	u.servers.settings.demoSocket = path
	set := fault.NewSet(u.inventory())
	go func() { d.ended <- d.controller.Run(runCtx, set) }()
	d.tasks.start("demo socket", d.serve)
	d.tasks.start("CPU meter", d.cpu.Run)
	d.tasks.start("node reports", func(ctx context.Context) error {
		return u.fleet.KeepNodesReady(ctx, nodeReportPeriod, u.beats.IsSilent)
	})
	d.tasks.start("flapping Pods", actions.flap)
	f, err := d.controller.Break(ctx, fault.Request{Kind: fault.Address, How: fault.Duplicate})
	if refused := new(faultcontroller.RefusedError); errors.As(err, &refused) {
		return "no Service has a ClusterIP, so there is no finding", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("a finding waits: two Services have the ClusterIP %s", f.Effect.Address), nil
}

// listenUnix listens on a socket that only this user reaches: the folder is private, too.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the socket of the demo (a shorter --data-dir may help): %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect the socket of the demo: %w", err), listener.Close())
	}
	return listener, nil
}

// serve answers `trivet-lab break` until ctx is done. A page cannot reach a Unix socket, so no
// token is needed.
func (d *demo) serve(ctx context.Context) error {
	server := &http.Server{Handler: faultcontroller.Handler(d.controller, d.cpu.Cores, ""), ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(d.socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the demo: %w", err)
	}
	return nil
}

// pageHandler answers the buttons of the page; nil without a demo.
func (d *demo) pageHandler() http.Handler {
	if d == nil {
		return nil
	}
	return faultcontroller.Handler(d.controller, d.cpu.Cores, d.token)
}

func (d *demo) describe(p *progress) {
	if d != nil {
		p.line("  demo        %s", d.path)
	}
}

// failed returns a channel with the error of a part that ended before stop.
func (d *demo) failed() <-chan error {
	if d == nil {
		return nil
	}
	return d.tasks.failed()
}

// stop restores everything that outlives the processes.
func (d *demo) stop() error {
	if d == nil {
		return nil
	}
	d.cancel()
	err := <-d.ended
	d.tasks.stop()
	return err
}

func (u *instance) inventory() fault.Inventory {
	inventory := fault.Inventory{Zones: u.fleet.Zones(), APIServers: []string{u.control.second.Name()}}
	for _, r := range u.servers.replicas {
		inventory.Replicas = append(inventory.Replicas, r.name)
	}
	inventory.Services, inventory.ClusterIPs = u.fleet.Services()
	return inventory
}

// actions breaks and restores what `trivet-lab up --demo` runs.
type actions struct {
	replicas map[string]*replica // by name
	servers  *servers
	control  *controlPlane
	fleet    *simulate.Fleet
	beats    *heartbeats
	logger   *slog.Logger

	mu    sync.Mutex      // guards flaps
	flaps map[string]bool // Services whose Pods flap
}

func newActions(u *instance) *actions {
	a := &actions{
		replicas: map[string]*replica{}, servers: u.servers, control: u.control, fleet: u.fleet, beats: u.beats, logger: u.servers.logger,
		flaps: map[string]bool{},
	}
	for _, r := range u.servers.replicas {
		a.replicas[r.name] = r
	}
	return a
}

// SetSilentNodes stops and starts heartbeats.
func (a *actions) SetSilentNodes(silent map[string]bool) {
	if err := a.beats.SetSilent(silent); err != nil {
		a.logger.Error("cannot start the heartbeats of simulated nodes", "error", err)
	}
}

// Break breaks a target.
func (a *actions) Break(ctx context.Context, f fault.Fault) (fault.Effect, error) {
	switch f.Kind {
	case fault.Node:
		return fault.Effect{Text: "the node sends no heartbeat and reports no status"}, nil
	case fault.Zone:
		nodes := a.fleet.Zones()[f.Name]
		return fault.Effect{Text: fmt.Sprintf("%d nodes send no heartbeat and report no status", len(nodes))}, nil
	case fault.Service:
		return a.breakReplica(ctx, f)
	case fault.APIServer:
		return a.breakAPIServer(f)
	case fault.Address:
		return a.breakAddress(ctx, f)
	case fault.Pods:
		return a.breakPods(ctx, f)
	default:
		return fault.Effect{}, fmt.Errorf("nothing breaks a %s", f.Kind)
	}
}

// breakReplica names the replica by the id under which all commands show it.
func (a *actions) breakReplica(ctx context.Context, f fault.Fault) (fault.Effect, error) {
	r := a.replicas[f.Name]
	id := a.servers.replicaAt(ctx, r.address)
	effect, err := r.breakIt(f.How)
	if id != "" {
		effect.Text += "; its id is " + id
	}
	return effect, err
}

func (a *actions) breakAPIServer(f fault.Fault) (fault.Effect, error) {
	second := a.control.second
	what := fmt.Sprintf("%s at %s, the endpoint %s", second.Name(), strings.TrimPrefix(second.RESTConfig().Host, "https://"), secondDocumentationAddress)
	switch f.How {
	case fault.Hang:
		return fault.Effect{Text: "suspended " + what}, second.Freeze()
	case fault.Kill:
		second.Kill()
		return fault.Effect{Text: "killed " + what}, nil
	default:
		return fault.Effect{Text: "stopped " + what}, second.Stop()
	}
}

func (a *actions) breakAddress(ctx context.Context, f fault.Fault) (effect fault.Effect, err error) {
	if f.How == fault.Duplicate {
		effect.Address, err = a.fleet.DuplicateAddress(ctx, f.Name)
		effect.Text = fmt.Sprintf("Service %s-duplicate has the ClusterIP %s, too", f.Name, effect.Address)
		return effect, err
	}
	effect.Address, err = a.fleet.DeleteAddress(ctx, f.Name)
	effect.Text = fmt.Sprintf("deleted IPAddress %s, the ClusterIP of %s; kube-apiserver's own repairer creates it again within 3 minutes", effect.Address, f.Name)
	return effect, err
}

func (a *actions) breakPods(ctx context.Context, f fault.Fault) (fault.Effect, error) {
	pods, err := a.fleet.SetPodsReady(ctx, f.Name, false)
	if err != nil {
		return fault.Effect{}, err
	}
	if len(pods) == 0 {
		return fault.Effect{}, errors.New("the Service has no Pods")
	}
	effect := fault.Effect{Pod: pods[0], Text: fmt.Sprintf("%d Pods are not ready", len(pods))}
	if f.How == fault.Flap {
		a.setFlapping(f.Name, true)
		effect.Text = fmt.Sprintf("%d Pods change their readiness every %v", len(pods), flapPeriod)
	}
	return effect, nil
}

// Restore undoes Break.
func (a *actions) Restore(ctx context.Context, f fault.Fault) error {
	switch f.Kind {
	case fault.Service:
		r := a.replicas[f.Name]
		if err := r.start(); err != nil {
			return err
		}
		return r.awaitServing(ctx)
	case fault.APIServer:
		if f.How == fault.Hang {
			return a.control.second.Thaw()
		}
		return a.control.second.Start()
	default:
		return a.Release(ctx, f)
	}
}

// Release undoes what outlives the processes, in the data of etcd. The processes are stopped later,
// also those that are suspended. SetSilentNodes restores nodes and zones.
func (a *actions) Release(ctx context.Context, f fault.Fault) error {
	switch f.Kind {
	case fault.Address:
		return a.fleet.RestoreAddress(ctx, f.Name)
	case fault.Pods:
		a.setFlapping(f.Name, false)
		_, err := a.fleet.SetPodsReady(ctx, f.Name, true)
		return err
	default:
		return nil
	}
}

func (a *actions) setFlapping(service string, flaps bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if flaps {
		a.flaps[service] = true
	} else {
		delete(a.flaps, service)
	}
}

func (a *actions) flapping() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	services := make([]string, 0, len(a.flaps))
	for service := range a.flaps {
		services = append(services, service)
	}
	return services
}

// flap changes the readiness of Pods until ctx ends.
func (a *actions) flap(ctx context.Context) error {
	tick := time.NewTicker(flapPeriod)
	defer tick.Stop()
	for ready := true; ; ready = !ready {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, service := range a.flapping() {
			if _, err := a.fleet.SetPodsReady(ctx, service, ready); err != nil && ctx.Err() == nil {
				a.logger.Warn("cannot change the readiness of Pods", "service", service, "error", err)
			}
			if !slices.Contains(a.flapping(), service) {
				// A restore during the write may have been overwritten by it.
				if _, err := a.fleet.SetPodsReady(ctx, service, true); err != nil {
					a.logger.Warn("cannot make Pods ready again", "service", service, "error", err)
				}
			}
		}
	}
}
