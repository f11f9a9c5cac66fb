package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

const (
	// ageTolerance is how much older an observation may be than its beat says.
	ageTolerance = 250 * time.Millisecond
	// answerTimeout bounds a connection to a replica that is silent: little of a grace period of 20
	// s may be lost at one of several.
	answerTimeout = 4 * time.Second
)

// beats sends the beats of the node. It is safe for concurrent use.
type beats struct {
	cfg       *Config
	addresses func() []string
	registry  prometheus.Registerer
	logger    *slog.Logger
	// seen has an item after the first observation of the kubelet, and begun is closed when there
	// is an agent.
	seen, begun chan struct{}

	mu       sync.Mutex   // guards the fields below
	agent    *agent.Agent // this and holder never change once begun is closed
	holder   agent.Holder
	observed time.Time
	// cutOff is since when kube-apiserver has served no request of the kubelet; zero while it
	// serves them. toldCutOff says that the last report has a cutOff.
	cutOff     time.Time
	toldCutOff bool
	waiting    error // why there is no agent yet
}

func newBeats(cfg *Config, addresses func() []string, registry prometheus.Registerer, logger *slog.Logger) *beats {
	return &beats{
		cfg: cfg, addresses: addresses, registry: registry, logger: logger, seen: make(chan struct{}, 1), begun: make(chan struct{}),
		waiting: errors.New("the agent has just started"),
	}
}

func (b *beats) setWaiting(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = err
}

// observe takes an observation of the kubelet.
func (b *beats) observe(at time.Time) {
	if err := b.Report(at); err != nil {
		b.logger.Warn("cannot report the kubelet", "error", err) // a defect: the holder is the agent's own
	}
}

// Report sends a beat in endpoint mode, and sets the age of the next beats in probe mode. An
// observation before the agent has its identity is kept.
func (b *beats) Report(observed time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if observed.After(b.observed) {
		b.observed = observed
	}
	select {
	case b.seen <- struct{}{}:
	default:
	}
	return b.report()
}

// CutOff implements endpoint.Heartbeats. The next beat says that the kubelet is cut off. That it
// is no more is said at once, with the age of the last observation: the Node may be about to be
// marked.
func (b *beats) CutOff(since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cutOff = since
	if since.IsZero() && b.toldCutOff {
		if err := b.report(); err != nil {
			b.logger.Warn("cannot report the kubelet", "error", err) // a defect: the holder is the agent's own
		}
	}
}

// report passes on what is known of the kubelet, if there is an agent. The caller holds b.mu.
func (b *beats) report() error {
	if b.agent == nil {
		return nil
	}
	switch told := !b.cutOff.IsZero(); {
	case told && !b.toldCutOff:
		b.logger.Warn("kube-apiserver serves no request of the kubelet, which leasesvc is told", "since", b.cutOff)
	case !told && b.toldCutOff:
		b.logger.Info("kube-apiserver serves requests of the kubelet again")
	}
	b.toldCutOff = !b.cutOff.IsZero()
	return b.agent.Report(b.holder, agent.Report{ObservedTime: b.observed, CutOff: b.cutOff})
}

// Beat implements endpoint.Heartbeats.
func (b *beats) Beat(ctx context.Context, observed time.Time) error {
	if err := b.Report(observed); err != nil {
		return err
	}
	select {
	case <-b.begun:
	case <-ctx.Done():
		return cmp.Or(b.check(), context.Cause(ctx))
	}
	if err := b.agent.AwaitRenewal(ctx, b.holder, observed); err != nil {
		return cmp.Or(b.check(), err)
	}
	return nil
}

// Renewed returns what the servers made of the beats; the zero Renewal before the first.
func (b *beats) Renewed() agent.Renewal {
	b.mu.Lock()
	a, holder := b.agent, b.holder
	b.mu.Unlock()
	if a == nil {
		return agent.Renewal{}
	}
	return a.Renewed(holder)
}

// run waits for the identity of the node, and for the first observation of the kubelet, because a
// registration says that it lives. Then it beats until ctx ends.
func (b *beats) run(ctx context.Context, files func() (identity.Files, error)) error {
	found, err := awaitIdentity(ctx, b.cfg, files, b.logger, b.setWaiting)
	if err != nil {
		return nil // ctx has ended
	}
	b.setWaiting(b.cfg.unseen())
	select {
	case <-ctx.Done():
		return nil
	case <-b.seen:
	}
	a, err := b.newAgent(found)
	if err != nil {
		return err
	}
	b.logger.Info("beats begin", "node", found.node, "boot_id", found.bootID, "mode", b.cfg.mode())
	return a.Run(ctx)
}

func (b *beats) newAgent(found nodeIdentity) (*agent.Agent, error) {
	holder := agent.Holder{Class: "node", Name: found.node, BootID: found.bootID}
	carriesWrites := b.cfg.Endpoint.Listen != ""
	a, err := agent.New(agent.Config{
		Lookup:  b.addresses,
		Dial:    func(target string) (*grpc.ClientConn, error) { return b.dial(target, found.client) },
		Cluster: b.cfg.Cluster, TokenFile: b.cfg.TokenFile,
		Name: "trivet-agent", Version: identity.Version(), Mode: b.cfg.mode(),
		Holders:      []agent.Holder{holder},
		BeatOnReport: carriesWrites, AgeTolerance: ageTolerance,
		AnswerTimeout: answerTimeout,
		// While the endpoint is away the kubelet writes nothing, so its silence proves nothing.
		ReleaseOnStop: b.cfg.ReleaseOnStop || carriesWrites, KeepLeaseObjects: !b.cfg.ReleaseOnStop,
		Logger: b.logger,
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.agent, b.holder, b.waiting = a, holder, nil
	if err := b.report(); err != nil {
		return nil, err
	}
	close(b.begun)
	return a, b.register(a, found)
}

func (b *beats) register(a *agent.Agent, found nodeIdentity) error {
	if err := b.registry.Register(agent.NewCollector(a)); err != nil {
		return err
	}
	if found.client == nil {
		return nil
	}
	return found.client.Register(b.registry, "leasesvc")
}

func (b *beats) dial(target string, client *identity.Client) (*grpc.ClientConn, error) {
	if b.cfg.Leasesvc.Insecure {
		if err := checkLoopback(target); err != nil {
			return nil, fmt.Errorf("--leasesvc-insecure: %w", err)
		}
	}
	namespace, name, _ := strings.Cut(b.cfg.Leasesvc.Service, "/")
	return rpcclient.Dial(target, rpcclient.Config{
		Identity: client, Insecure: b.cfg.Leasesvc.Insecure, ServerName: name + "." + namespace + ".svc",
	}, b.logger)
}

// mode is what the API shows of the agent.
func (c *Config) mode() string {
	if c.Endpoint.Listen != "" {
		return "endpoint"
	}
	return "probe"
}

// unseen says why there is no beat before the first observation of the kubelet.
func (c *Config) unseen() error {
	if c.Endpoint.Listen != "" {
		return fmt.Errorf("the kubelet has not renewed its Lease through %s since the agent started; check that its kubeconfig leads there", c.Endpoint.Listen)
	}
	return errors.New("the kubelet was not seen since the agent started")
}

// answers reports whether a replica of leasesvc answers now, so that the list of replicas is good.
func (b *beats) answers() bool {
	b.mu.Lock()
	a := b.agent
	b.mu.Unlock()
	return a == nil || a.Status().Connected
}

// check is nil while leasesvc has the lease of the node.
func (b *beats) check() error {
	b.mu.Lock()
	a, waiting := b.agent, b.waiting
	b.mu.Unlock()
	if a == nil {
		return waiting
	}
	renewal, status := b.Renewed(), a.Status()
	switch {
	case renewal.Live:
		return nil
	case renewal.Reason != "":
		return fmt.Errorf("leasesvc refuses the node: %s%s", renewal.Reason, remedies[renewal.Reason])
	case len(b.addresses()) == 0:
		return errors.New("no replica is known; check --leasesvc-address, or the endpoints of --leasesvc-service")
	case status.LastError != "":
		return errors.New(status.LastError)
	}
	return errors.New("no replica has answered yet")
}

// detail says what leasesvc knows.
func (b *beats) detail() string {
	renewal := b.Renewed()
	return fmt.Sprintf("last beat accepted %v ago, of a kubelet seen %v before", time.Since(renewal.Accepted).Round(time.Millisecond),
		renewal.Accepted.Sub(renewal.Observed).Round(time.Millisecond))
}

// remedies say what to do about a reason.
var remedies = map[string]string{
	"SUPERSEDED":        "; another boot of this node beats: check for a second machine with this name",
	"NOT_AUTHORIZED":    "; its credential must be of this node: check the client certificate or the token",
	"NOT_AUTHENTICATED": "; check that the client certificate or the token has not expired, and its authority",
	"UNKNOWN_CLASS":     "; leasesvc has no class \"node\": check its --classes",
}
